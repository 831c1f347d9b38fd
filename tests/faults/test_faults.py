"""Parts of the shop are killed, or cut off, in the middle of a burst: nothing is lost, and nothing is sold twice.

`make faults ROUNDS=20` plays twenty rounds of each. A seed decides carts, moments and bytes; which request meets the
fault is still the machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from tests.factories import DISTINCT
from tests.faults.conftest import Play
from tests.faults.faults import FAULTS

OTHER_LOCKS = [
    ("file-lock", "kill-web-process"),
    ("insert-lock", "kill-postgres"),
    ("lock-table", "kill-postgres"),
    ("session-lock", "cut-postgres"),
]
"""One fault each, that ends its holder or its server: in all else they are `redis-lock`."""


@pytest.mark.parametrize(("strategy", "fault"), [*product(DISTINCT, sorted(FAULTS.keys() - {"nothing"})), *OTHER_LOCKS])
def test_what_was_answered_is_there_and_every_unit_is_somebodys(
    play: Play, record_property: Callable[[str, object], None], strategy: str, fault: str, number: int
) -> None:
    seen = play(strategy, fault, number)
    record_property("round", seen)

    assert seen["losses"] == {}, seen["again"]
    # The fault came, and in the middle of the burst.
    assert seen["faults"] > 0
    assert 0 < seen["answered_before"] < seen["wishes"]


def caught(play: Play, flawed: str, fault: str, loss: str) -> bool:
    """Whether one of ten rounds shows the loss. The fault need not meet a request where it hurts each time."""
    return any(play(flawed, fault, number)["losses"].get(loss) for number in range(1, 11))


@pytest.mark.parametrize("fault", ["kill-web", "kill-postgres"])
def test_an_answer_before_the_commit_is_caught(play: Play, fault: str) -> None:
    assert caught(play, "answers-early", fault, "missing")


@pytest.mark.parametrize("fault", ["kill-web", "kill-web-process"])
def test_units_that_are_taken_without_a_note_are_caught(play: Play, fault: str) -> None:
    assert caught(play, "lua-without-notes", fault, "ownerless")


@pytest.mark.parametrize("flawed", ["answers-early", "lua-without-notes"])
def test_without_a_fault_neither_loses_anything(play: Play, flawed: str) -> None:
    assert play(flawed, "nothing")["losses"] == {}
