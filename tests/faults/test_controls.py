"""The negative controls of the rounds: what is lost to a fault is seen to be lost, and without a fault nothing is."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Play

FLAWED = ["acknowledges-early", "answers-early", "gives-back-when-in-doubt", "lua-without-notes"]


def caught(play: Play, flawed: str, fault: str, loss: str) -> bool:
    """Whether one of thirty rounds shows the loss. The fault need not meet a request where it hurts each time."""
    return any(play(flawed, fault, number)["losses"].get(loss) for number in range(1, 31))


@pytest.mark.parametrize("fault", ["kill-web", "kill-postgres"])
def test_an_answer_before_the_commit_is_caught(play: Play, fault: str) -> None:
    assert caught(play, "answers-early", fault, "missing")


@pytest.mark.parametrize("fault", ["kill-web", "kill-web-process", "cut-redis"])
def test_units_that_are_taken_without_a_note_are_caught(play: Play, fault: str) -> None:
    assert caught(play, "lua-without-notes", fault, "ownerless")


@pytest.mark.parametrize("fault", ["cut-postgres", "kill-postgres"])
def test_units_that_are_given_back_though_they_may_be_sold_are_caught(play: Play, fault: str) -> None:
    assert caught(play, "gives-back-when-in-doubt", fault, "ownerless")


def test_what_is_taken_off_the_queue_before_the_commit_is_caught(play: Play) -> None:
    assert caught(play, "acknowledges-early", "kill-worker", "queued for ever")


def test_a_queue_that_is_not_on_disk_is_caught(play: Play) -> None:
    assert caught(play, "lua-queue", "kill-valkey-without-its-log", "queued for ever")


@pytest.mark.parametrize("flawed", FLAWED)
def test_without_a_fault_none_of_them_loses_anything(play: Play, flawed: str) -> None:
    assert play(flawed, "nothing")["losses"] == {}
