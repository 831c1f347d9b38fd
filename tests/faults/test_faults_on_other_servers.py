"""The same faults, while the shop's locks are on servers of their own: others get them, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from tests.faults.conftest import Shop, Survives, running_shop
from tests.faults.faults import FAULTS
from tests.locking.conftest import running_valkey
from tests.locking.etcd_support import running_etcd
from tests.locking.zookeeper_support import running_zookeeper

pytestmark = pytest.mark.slow


@contextmanager
def etcd() -> Iterator[str]:
    with running_etcd() as server:
        yield server.url


@contextmanager
def zookeeper() -> Iterator[str]:
    with running_zookeeper() as server:
        yield server.hosts


@contextmanager
def three_valkeys() -> Iterator[str]:
    with ExitStack() as running:
        yield ",".join(running.enter_context(running_valkey()).url for _ in range(3))


SERVERS: Mapping[str, tuple[str, Callable[[], AbstractContextManager[str]]]] = {
    "etcd-lock": ("ETCD_URL", etcd),
    "redlock": ("REDLOCK_URLS", three_valkeys),
    "zookeeper-lock": ("ZOOKEEPER_HOSTS", zookeeper),
}
"""The setting that says where each lock is, and who answers there."""


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
