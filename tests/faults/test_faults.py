"""Parts of the shop are killed or disconnected during a burst. No order is lost, and no unit is sold twice.

`make faults ROUNDS=20` plays twenty rounds of each strategy with each fault that can affect it. The seed decides carts,
moments and byte counts, but not which request is hit.
"""

from __future__ import annotations

import pytest

from tests.factories import DISTINCT
from tests.faults.conftest import Survives
from tests.faults.faults import faults_of

pytestmark = pytest.mark.slow

OTHER_LOCKS = ["file-lock", "insert-lock", "lock-table", "session-lock"]
"""Strategies with other locks that need no optional server. `test_faults_on_other_servers` has the rest."""

ROUNDS = [(strategy, fault) for strategy in (*DISTINCT, *OTHER_LOCKS) for fault in faults_of(strategy)]


@pytest.mark.parametrize(("strategy", "fault"), ROUNDS)
def test_nothing_is_lost(survives: Survives, strategy: str, fault: str, number: int) -> None:
    survives(strategy, fault, number)
