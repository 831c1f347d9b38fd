"""Every strategy that ships, held against the properties of a strategy, and what an order costs by each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis import Redis

from inventory.errors import UnknownStrategy
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from inventory.strategies.registry import NAMES
from tests.factories import new_request, preheated
from tests.inventory.conformance import StrategyConformance
from tests.inventory.conftest import Ledger


class TestStrategy(StrategyConformance):
    """`lua-queue` answers before the order is saved: see test_lua_queue.py."""

    @pytest.fixture(params=[name for name in NAMES if name != "lua-queue"])
    def strategy(self, request: pytest.FixtureRequest) -> Strategy:
        return registry.get(request.param)


def test_every_name_has_its_strategy() -> None:
    assert {name: registry.get(name).name for name in NAMES} == {name: name for name in NAMES}


@pytest.mark.parametrize("name", ["", "compute-and-overwrite", "subtract-in-sql", "Lua"])
def test_no_other_name_has_one(name: str) -> None:
    with pytest.raises(UnknownStrategy, match="ZOOKEEPER_HOSTS"):
        registry.get(name)


# What one order of two skus costs: statements to Postgres, and what is sent to Redis. The INSERT is the test's Save.
# The locks that are in Postgres have connections of their own, and what goes over those is not in here.
COSTS = {
    "group-commit": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "advisory-lock": ("BEGIN SELECT SELECT UPDATE UPDATE INSERT COMMIT", ""),
    "guarded-update": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "insert-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "lock-table": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "lua": ("BEGIN UPDATE UPDATE INSERT COMMIT", "EVALSHA EVALSHA"),
    "lua-queue": ("", "EVALSHA"),
    "optimistic": ("BEGIN SELECT UPDATE SELECT UPDATE INSERT COMMIT", ""),
    "file-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "redis-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", "EVALSHA EVALSHA EVALSHA EVALSHA"),
    "segmented-redis": ("BEGIN UPDATE UPDATE INSERT COMMIT", "EVALSHA EVALSHA EVALSHA EVALSHA EVALSHA EVALSHA"),
    "segmented-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", "EVALSHA EVALSHA EVALSHA EVALSHA"),
    "row-lock": ("BEGIN SELECT UPDATE UPDATE INSERT COMMIT", ""),
    "session-lock": ("BEGIN UPDATE UPDATE INSERT COMMIT", ""),
    "unit-rows": ("BEGIN DELETE DELETE INSERT COMMIT", ""),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", NAMES)
def test_an_order_costs_so_many_statements_and_commands(name: str, ledger: Ledger, redis: Redis) -> None:
    strategy = preheated(name, {"a": 2, "b": 2})
    strategy.place(new_request(("a", 1), ("b", 1)), ledger.save)  # the scripts are in the server from now on

    with CaptureQueriesContext(connection) as queries:
        sent = commands_sent(redis, lambda: strategy.place(new_request(("a", 1), ("b", 1)), ledger.save))

    registry.work(ledger.save, ledger.reject, ledger.saved)
    statements = " ".join(query["sql"].split()[0] for query in queries)
    assert (statements, " ".join(sent)) == COSTS[name]
    ledger.assert_law(a=(0, 2), b=(0, 2))


def commands_sent(redis: Redis, body: Callable[[], Any]) -> list[str]:
    """The commands that clients send to Redis during the body, without those that scripts run inside of it."""
    sent: list[str] = []
    with redis.monitor() as monitor:
        redis.echo("begin")  # opens a connection too, in place of the one that listens
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
