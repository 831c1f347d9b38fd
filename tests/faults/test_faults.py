"""Parts of the shop are killed or disconnected in the middle of a burst: nothing is lost or sold twice.

`make faults ROUNDS=20` plays every fault twenty times with every strategy whose orders can meet it. The seed decides
carts, moments and bytes; which request meets the fault also depends on the machine.
"""

from __future__ import annotations

import pytest

from tests.factories import DISTINCT
from tests.faults.conftest import Survives
from tests.faults.faults import faults_of

OTHER_LOCKS = ["file-lock", "insert-lock", "lock-table", "session-lock"]
"""`test_faults_on_other_servers` has the strategies whose locks are on servers that a shop need not have."""

ROUNDS = [(strategy, fault) for strategy in (*DISTINCT, *OTHER_LOCKS) for fault in faults_of(strategy)]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "fault"), ROUNDS)
def test_nothing_is_lost(survives: Survives, strategy: str, fault: str, number: int) -> None:
    survives(strategy, fault, number)
