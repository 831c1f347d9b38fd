"""The faults of `test_faults` for strategies whose locks are on optional servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.conftest import RoundPlayer, Survives, round_player
from tests.faults.faults import faults_of
from tests.lock_servers import SERVERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(SERVERS))
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def player(strategy: str) -> Iterator[RoundPlayer]:
    setting, server = SERVERS[strategy]
    with server() as address, round_player(**{setting: address}) as running:
        yield running


@pytest.mark.parametrize("fault", faults_of("a lock on another server"))
def test_nothing_is_lost(survives: Survives, strategy: str, fault: str, number: int) -> None:
    survives(strategy, fault, number)
