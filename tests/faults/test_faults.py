"""Parts of the shop are killed, or cut off, in the middle of a burst: nothing is lost, and nothing is sold twice.

`make faults ROUNDS=20` plays twenty rounds of each. A seed decides carts, moments and bytes; which request meets the
fault is still the machine's.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.factories import DISTINCT
from tests.faults.conftest import Play, Survives
from tests.faults.faults import FAULTS

OTHER_LOCKS = [
    ("file-lock", "kill-web-process"),
    ("insert-lock", "kill-postgres"),
    ("lock-table", "kill-postgres"),
    ("session-lock", "cut-postgres"),
]
"""One fault each, that ends its holder or its server: in all else they are `redis-lock`.

Those whose locks are on other servers than the shop's are in `test_other_servers`.
"""


@pytest.mark.parametrize(("strategy", "fault"), [*product(DISTINCT, sorted(FAULTS)), *OTHER_LOCKS])
def test_what_was_answered_is_there_and_every_unit_is_somebodys(
    survives: Survives, strategy: str, fault: str, number: int
) -> None:
    survives(strategy, fault, number)


def caught(play: Play, flawed: str, fault: str, loss: str) -> bool:
    """Whether one of ten rounds shows the loss. The fault need not meet a request where it hurts each time."""
    return any(play(flawed, fault, number)["losses"].get(loss) for number in range(1, 11))


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


FLAWED = ["acknowledges-early", "answers-early", "gives-back-when-in-doubt", "lua-without-notes"]


@pytest.mark.parametrize("flawed", FLAWED)
def test_without_a_fault_none_of_them_loses_anything(play: Play, flawed: str) -> None:
    assert play(flawed, "nothing")["losses"] == {}
