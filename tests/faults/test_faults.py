"""Parts of the shop are killed or disconnected during a burst. No order is lost, and no unit is sold twice.

`make faults ROUNDS=20` plays twenty rounds of each strategy with each fault that can affect it. The seed decides carts,
moments and byte counts, but not which request is hit.
"""

from __future__ import annotations

import pytest

from inventory.strategies.registry import NAMES
from tests.faults.conftest import Survives
from tests.faults.faults import faults_of

pytestmark = pytest.mark.slow

# `test_faults_on_other_servers` has the strategies whose locks need an optional server.
ROUNDS = [(strategy, fault) for strategy in NAMES for fault in faults_of(strategy)]


@pytest.mark.parametrize(("strategy", "fault"), ROUNDS)
def test_nothing_is_lost(survives: Survives, strategy: str, fault: str, number: int) -> None:
    survives(strategy, fault, number)
