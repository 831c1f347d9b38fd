"""The negative controls of the rounds: what is lost to a fault is seen to be lost, and without a fault nothing is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.faults.conftest import Play, Shop, running_shop

pytestmark = pytest.mark.slow

FLAWED = ["acknowledges-early", "answers-early", "gives-back-when-in-doubt", "lua-without-notes"]


ENOUGH = 120.0  # seconds of rounds; the fault need not meet a request where it hurts in each of them


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with running_shop(FLAWED_WORKER="1") as running:
        yield running


def assert_caught(play: Play, flawed: str, fault: str, loss: str) -> None:
    """Play rounds until one shows the loss."""
    until, number = time.monotonic() + ENOUGH, 1
    while not play(flawed, fault, number)["losses"].get(loss):
        assert time.monotonic() < until, f"not caught in {number} rounds"
        number += 1


@pytest.mark.parametrize("fault", ["kill-web", "kill-postgres"])
def test_an_answer_before_the_commit_is_caught(play: Play, fault: str) -> None:
    assert_caught(play, "answers-early", fault, "missing")


@pytest.mark.parametrize("fault", ["kill-web", "kill-web-process", "cut-redis"])
def test_units_that_are_taken_without_a_note_are_caught(play: Play, fault: str) -> None:
    assert_caught(play, "lua-without-notes", fault, "ownerless")


@pytest.mark.parametrize("fault", ["cut-postgres", "kill-postgres"])
def test_units_that_are_given_back_though_they_may_be_sold_are_caught(play: Play, fault: str) -> None:
    assert_caught(play, "gives-back-when-in-doubt", fault, "ownerless")


def test_what_is_taken_off_the_queue_before_the_commit_is_caught(play: Play) -> None:
    assert_caught(play, "acknowledges-early", "kill-worker", "queued for ever")


def test_a_queue_that_is_not_on_disk_is_caught(play: Play) -> None:
    assert_caught(play, "lua-queue", "kill-valkey-without-its-log", "queued for ever")


@pytest.mark.parametrize("flawed", FLAWED)
def test_without_a_fault_none_of_them_loses_anything(play: Play, flawed: str) -> None:
    assert play(flawed, "nothing")["losses"] == {}
