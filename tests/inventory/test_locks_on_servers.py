"""The lock-wrapped strategy over locks whose servers a shop may have besides: etcd, ZooKeeper, several Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.test import override_settings

from inventory import stock
from inventory.errors import StockElsewhere, StockUnavailable
from inventory.models import StockItem
from inventory.strategies import locked, locks, registry
from inventory.strategies.base import Strategy
from inventory.strategies.locked import CLAIM
from inventory.strategies.locks import lock_strategies
from tests.factories import new_request
from tests.inventory.conformance import StrategyConformance
from tests.inventory.conftest import Ledger
from tests.locking.conftest import running_valkey
from tests.locking.etcd_support import running_etcd
from tests.locking.zookeeper_support import running_zookeeper

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

NODES = 3


def named(name: str) -> Strategy:
    """The strategy as the settings of the moment have it."""
    return next(strategy for strategy in lock_strategies() if strategy.name == name)


def forget() -> None:
    """Let go of the clients of servers that are not the settings' any more."""
    if locks._zookeeper_client_of.cache_info().currsize:
        client, _ = locks._zookeeper_client()
        client.stop()
        client.close()
    for clients in (locks._etcd_client, locks._redlock_clients, locks._zookeeper_client_of):
        clients.cache_clear()


@pytest.fixture(scope="module")
def etcd_lock() -> Iterator[Strategy]:
    with running_etcd() as etcd, override_settings(ETCD_URL=etcd.url):
        yield named("etcd-lock")
        forget()


@pytest.fixture(scope="module")
def redlock() -> Iterator[Strategy]:
    with ExitStack() as stack:
        urls = [stack.enter_context(running_valkey()).url for _ in range(NODES)]
        stack.enter_context(override_settings(REDLOCK_URLS=urls))
        yield named("redlock")
        forget()


@pytest.fixture(scope="module")
def zookeeper_lock() -> Iterator[Strategy]:
    with running_zookeeper() as zookeeper, override_settings(ZOOKEEPER_HOSTS=zookeeper.hosts):
        yield named("zookeeper-lock")
        forget()


class TestEtcdLock(StrategyConformance):
    @pytest.fixture
    def strategy(self, etcd_lock: Strategy) -> Strategy:
        return etcd_lock


class TestRedlock(StrategyConformance):
    @pytest.fixture
    def strategy(self, redlock: Strategy) -> Strategy:
        return redlock


class TestZooKeeperLock(StrategyConformance):
    @pytest.fixture
    def strategy(self, zookeeper_lock: Strategy) -> Strategy:
        return zookeeper_lock


# A sku that moves between Redis and etcd, whose fences are revisions


def test_a_sku_that_moves_from_redis_to_etcd_and_back_sells_on(ledger: Ledger, etcd_lock: Strategy) -> None:
    stock.deliver("a", 4)
    redis_lock = registry.get("redis-lock")
    seen = []
    for strategy in (redis_lock, etcd_lock, etcd_lock, redis_lock):
        strategy.place(new_request(("a", 1)), ledger.save)
        seen.append(StockItem.objects.values_list("fenced_by", "fence").get())
    assert [name for name, _ in seen] == ["redis-lock", "etcd-lock", "etcd-lock", "redis-lock"]
    assert seen[1][1] < seen[2][1] < seen[0][1] < seen[3][1]
    ledger.assert_law(a=(0, 4))


def test_where_the_kind_of_a_fence_is_not_looked_at_etcd_never_sells_what_redis_has_sold(
    ledger: Ledger, etcd_lock: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(locked, "CLAIM", CLAIM.replace(" OR fenced_by <> %(kind)s", ""))
    stock.deliver("a", 2)
    registry.get("redis-lock").place(new_request(("a", 1)), ledger.save)
    with pytest.raises(StockElsewhere, match="a is split up"):
        etcd_lock.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 1))


# Nobody there


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("etcd-lock", {"ETCD_URL": "http://127.0.0.1:1"}),
        ("redlock", {"REDLOCK_URLS": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]}),
        ("zookeeper-lock", {"ZOOKEEPER_HOSTS": "127.0.0.1:1", "STOCK_LOCK_WAIT": 0.1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_given_no_server_it_is_unavailable_and_nothing_is_taken(
    ledger: Ledger, name: str, setting: dict[str, object]
) -> None:
    stock.deliver("a", 1)
    forget()
    try:
        with override_settings(**setting), pytest.raises(StockUnavailable):
            named(name).place(new_request(("a", 1)), ledger.save)
    finally:
        forget()
    ledger.assert_law(a=(1, 0))
