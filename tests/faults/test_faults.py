"""Parts of the shop are killed or disconnected in the middle of a burst: nothing is lost or sold twice.

`make faults ROUNDS=20` plays every fault twenty times with every strategy. `make test` plays every fault with one
strategy of each kind, and one fault with each other strategy. The seed decides carts, moments and bytes; which request
meets the fault also depends on the machine.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.factories import DISTINCT
from tests.faults.conftest import Survives
from tests.faults.faults import FAULTS

OTHER_LOCKS = ["file-lock", "insert-lock", "lock-table", "session-lock"]
"""`test_faults_on_other_servers` has the strategies whose locks are on servers that a shop need not have."""

KINDS = {"guarded-update", "lua-queue", "redis-lock"}
"""Stock in a transaction, stock in Redis with a queue, and a lock."""


def rounds() -> list[Any]:
    faults, played = sorted(FAULTS), []
    for place, strategy in enumerate([*DISTINCT, *OTHER_LOCKS]):
        for fault in faults:
            chosen = strategy in KINDS or fault == faults[place % len(faults)]
            marks = [] if chosen else [pytest.mark.slow]
            played.append(pytest.param(strategy, fault, marks=marks, id=f"{strategy}-{fault}"))
    return played


@pytest.mark.parametrize(("strategy", "fault"), rounds())
def test_nothing_is_lost(survives: Survives, strategy: str, fault: str, number: int) -> None:
    survives(strategy, fault, number)
