"""The lock strategies on optional servers: etcd, ZooKeeper, several Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import override_settings

from inventory import stock
from inventory.errors import StockUnavailable
from inventory.strategies import locks
from inventory.strategies.base import Strategy
from inventory.strategies.locks import lock_strategy
from tests.factories import new_request
from tests.inventory.conformance import StrategyConformance
from tests.inventory.conftest import Ledger
from tests.lock_servers import SERVERS

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def forget_clients() -> None:
    """Close and forget the lock clients, because the next test may name other servers."""
    if locks._zookeeper_client_of.cache_info().currsize:
        client, _ = locks._zookeeper_client()
        client.stop()
        client.close()
    for clients in (locks._etcd_client, locks._redlock_clients, locks._zookeeper_client_of):
        clients.cache_clear()


@pytest.fixture(scope="module", params=SERVERS)
def on_its_server(request: pytest.FixtureRequest) -> Iterator[Strategy]:
    setting, server = SERVERS[request.param]
    with server() as address, override_settings(**{setting: address.split(",") if "," in address else address}):
        yield lock_strategy(request.param)
        forget_clients()


class TestLock(StrategyConformance):
    @pytest.fixture
    def strategy(self, on_its_server: Strategy) -> Strategy:
        return on_its_server


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("etcd-lock", {"ETCD_URL": "http://127.0.0.1:1"}),
        ("redlock", {"REDLOCK_URLS": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]}),
        ("zookeeper-lock", {"ZOOKEEPER_HOSTS": "127.0.0.1:1", "STOCK_LOCK_WAIT": 0.1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_server_it_is_unavailable(ledger: Ledger, name: str, setting: dict[str, object]) -> None:
    stock.deliver("a", 1)
    forget_clients()
    try:
        with override_settings(**setting), pytest.raises(StockUnavailable):
            lock_strategy(name).place(new_request(("a", 1)), ledger.save)
    finally:
        forget_clients()
    ledger.assert_law(a=(1, 0))
