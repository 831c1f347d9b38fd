"""Parts of the shop are killed, or cut off, in the middle of a burst: nothing is lost, and nothing is sold twice.

`make faults ROUNDS=20` plays twenty rounds of each. A seed decides carts, moments and bytes; which request meets the
fault is still the machine's.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.factories import DISTINCT
from tests.faults.conftest import Survives
from tests.faults.faults import FAULTS

OTHER_LOCKS = ["file-lock", "insert-lock", "lock-table", "session-lock"]
"""Those whose locks are on other servers than the shop's are in `test_faults_on_other_servers`."""


@pytest.mark.parametrize(("strategy", "fault"), [*product([*DISTINCT, *OTHER_LOCKS], sorted(FAULTS))])
def test_what_was_answered_is_there_and_every_unit_is_somebodys(
    survives: Survives, strategy: str, fault: str, number: int
) -> None:
    survives(strategy, fault, number)
