"""The same faults, while the shop's locks are on servers of their own: others get them, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.conftest import Shop, Survives, running_shop
from tests.faults.faults import FAULTS
from tests.lock_servers import SERVERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(SERVERS))
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shop(strategy: str) -> Iterator[Shop]:
    setting, server = SERVERS[strategy]
    with server() as address, running_shop(**{setting: address}) as running:
        yield running


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_what_was_answered_is_there_and_every_unit_is_somebodys(
    survives: Survives, strategy: str, fault: str, number: int
) -> None:
    survives(strategy, fault, number)
