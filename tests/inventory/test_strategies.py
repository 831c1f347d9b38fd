"""Every strategy passes `StrategyConformance`; the number of statements and commands per order; the registry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from redis import Redis

from inventory.errors import UnknownStrategy
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from inventory.strategies.registry import NAMES
from tests.factories import DISTINCT, SAVING, new_request, preheated
from tests.inventory.conformance import StrategyConformance
from tests.inventory.conftest import Ledger, fails


class TestStrategy(StrategyConformance):
    """All strategies except `lua-queue`, which responds before the order is saved. test_lua_queue.py tests it."""

    @pytest.fixture(
        params=[name if name in DISTINCT else pytest.param(name, marks=pytest.mark.slow) for name in SAVING]
    )
    def strategy(self, request: pytest.FixtureRequest) -> Strategy:
        return registry.get(request.param)


@pytest.mark.django_db
@pytest.mark.parametrize("name", NAMES)
def test_it_needs_to_open_the_transaction(name: str) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match=name):
        registry.get(name).place(new_request(("a", 1)), fails(AssertionError("It was saved.")))


def test_every_name_has_its_strategy() -> None:
    assert {name: registry.get(name).name for name in NAMES} == {name: name for name in NAMES}
    assert registry.get("lua") is registry.get("lua")
    assert list(registry.STRATEGIES) == sorted(registry.STRATEGIES)


@pytest.mark.parametrize("name", ["", "compute-and-overwrite", "subtract-in-sql", "Lua", "etcd-lock"])
def test_no_other_name_has_one(name: str) -> None:
    with pytest.raises(UnknownStrategy, match="ZOOKEEPER_HOSTS"):
        registry.get(name)


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [
        ("REDLOCK_URLS", ["redis://a"], "redlock"),
        ("ETCD_URL", "http://a", "etcd-lock"),
        ("ZOOKEEPER_HOSTS", "a", "zookeeper-lock"),
    ],
)
def test_a_strategy_is_known_when_its_server_is(settings: Any, setting: str, value: object, name: str) -> None:
    assert name not in NAMES
    setattr(settings, setting, value)
    assert set(registry.known_names()) - set(NAMES) == {name}
    settings.LOCK_FOLDER = ""
    assert set(NAMES) - set(registry.known_names()) == {"file-lock"}


def test_strategies_with_a_copy_of_the_stock_are_told_of_changes() -> None:
    hooks = ("unload", "refresh", "units_returned")
    copying = {
        name for name in NAMES if any(getattr(type(registry.get(name)), h) is not getattr(Strategy, h) for h in hooks)
    }
    assert set(registry.COPYING) == copying


@pytest.mark.slow
def test_a_process_loads_only_the_strategy_that_it_uses() -> None:
    code = """
        import sys, django
        django.setup()
        from inventory.strategies import registry
        registry.get("guarded-update")
        print(*sorted(name for name in sys.modules if name.startswith("inventory.strategies.")))
    """
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    loaded = subprocess.run(
        [sys.executable, "-c", dedent(code)], env=environment, capture_output=True, text=True, check=True
    )
    names = ("base", "guarded_update", "registry")
    assert loaded.stdout.split() == [f"inventory.strategies.{name}" for name in names]


# SQL statements and Redis commands of an order of two skus. INSERT is the test's `save` callback. The locks of
# `insert-lock`, `lock-table` and `session-lock` use other connections, which are not counted.
COSTS = {
    "group-commit": ("WITH", ""),
    "advisory-lock": ("BEGIN SELECT SELECT UPDATE UPDATE INSERT COMMIT", ""),
    "guarded-update": ("WITH", ""),
    "insert-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "lock-table": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "lua": ("WITH", "EVALSHA EVALSHA"),
    "lua-queue": ("", "EVALSHA"),
    "optimistic": ("BEGIN SELECT UPDATE SELECT UPDATE INSERT COMMIT", ""),
    "file-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "redis-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", "EVALSHA EVALSHA EVALSHA EVALSHA"),
    "segmented-redis": ("WITH", "EVALSHA EVALSHA EVALSHA EVALSHA EVALSHA EVALSHA"),
    "segmented-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", "EVALSHA EVALSHA EVALSHA EVALSHA"),
    "row-lock": ("BEGIN SELECT UPDATE UPDATE INSERT COMMIT", ""),
    "session-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "unit-rows": ("BEGIN DELETE DELETE INSERT COMMIT", ""),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", NAMES)
def test_the_cost_of_an_order(name: str, ledger: Ledger, redis: Redis) -> None:
    strategy = preheated(name, {"a": 2, "b": 2})
    strategy.place(new_request(("a", 1), ("b", 1)), ledger.save)  # Let the server cache the scripts first.

    with CaptureQueriesContext(connection) as queries:
        sent = commands_sent(redis, lambda: strategy.place(new_request(("a", 1), ("b", 1)), ledger.save))

    registry.work(ledger.save, ledger.reject, ledger.saved)
    statements = " ".join(query["sql"].split()[0] for query in queries)
    assert (statements, " ".join(sent)) == COSTS[name]
    ledger.assert_law(a=(0, 2), b=(0, 2))


def commands_sent(redis: Redis, body: Callable[[], Any]) -> list[str]:
    """Return the commands that clients send to Redis while the body runs, without those inside scripts."""
    sent: list[str] = []
    with redis.monitor() as monitor:
        redis.echo("begin")  # Open a second connection, because the monitor keeps the first.
        body()
        redis.echo("end")
        for command in monitor.listen():
            match command["command"]:
                case "ECHO begin":
                    sent.clear()
                case "ECHO end":
                    return sent
                case _ if command["client_type"] != "lua":
                    sent.append(command["command"].split()[0])
    raise AssertionError("the end was not heard")
