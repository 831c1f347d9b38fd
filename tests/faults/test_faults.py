"""Parts of the shop are killed or disconnected during a burst. No order is lost, and no unit is sold twice.

`make faults ROUNDS=20` plays each pair of a fault and a strategy that it can affect twenty times. The seed decides
carts, moments and byte counts. Which request is hit also depends on the machine.
"""

from __future__ import annotations

import pytest

from tests.factories import DISTINCT
from tests.faults.conftest import Survives
from tests.faults.faults import faults_of

OTHER_LOCKS = ["file-lock", "insert-lock", "lock-table", "session-lock"]
"""Locks that need no optional server. `test_faults_on_other_servers` tests the strategies whose locks need one."""

ROUNDS = [(strategy, fault) for strategy in (*DISTINCT, *OTHER_LOCKS) for fault in faults_of(strategy)]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "fault"), ROUNDS)
def test_nothing_is_lost(survives: Survives, strategy: str, fault: str, number: int) -> None:
    survives(strategy, fault, number)
