"""Negative controls of the fault rounds: flawed strategies are caught, and a round without a fault reports no loss."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.faults.conftest import Play, RoundPlayer, round_player

pytestmark = pytest.mark.slow

FLAWED = ["acknowledges-early", "answers-early", "gives-back-when-in-doubt", "lua-without-reservations"]
ENOUGH = 120.0  # maximum seconds until a loss must show: not every fault hits a request at its critical moment


@pytest.fixture(scope="module")
def player() -> Iterator[RoundPlayer]:
    with round_player(FLAWED_WORKER="1") as running:
        yield running


@pytest.mark.parametrize(
    ("flawed", "fault", "loss"),
    [
        ("answers-early", "kill-web", "missing"),
        ("answers-early", "kill-postgres", "missing"),
        ("lua-without-reservations", "kill-web", "ownerless"),
        ("lua-without-reservations", "kill-web-process", "ownerless"),
        ("lua-without-reservations", "cut-redis", "ownerless"),
        ("gives-back-when-in-doubt", "cut-postgres", "ownerless"),
        ("gives-back-when-in-doubt", "kill-postgres", "ownerless"),
        ("acknowledges-early", "kill-worker", "queued for ever"),
        ("lua-queue", "kill-valkey-without-aof", "queued for ever"),
    ],
)
def test_a_loss_is_found(play: Play, flawed: str, fault: str, loss: str) -> None:
    deadline, number = time.monotonic() + ENOUGH, 1
    while not play(flawed, fault, number)["losses"].get(loss):
        assert time.monotonic() < deadline, f"not found in {number} rounds"
        number += 1


@pytest.mark.parametrize("flawed", FLAWED)
def test_without_a_fault_nothing_is_lost(play: Play, flawed: str) -> None:
    assert play(flawed, "nothing")["losses"] == {}
