"""The benchmarks of segments and of contention: what they count. A run that lost orders has no figures."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from redis import Redis

from inventory.requests import RequestItem
from inventory.strategies import optimistic
from loadtest.bench import bursts, client_processes, clients, contention, segments
from loadtest.bench.client_processes import ClientProcesses
from loadtest.bench.clients import ClientResults, Plan
from loadtest.preparation import create_customers
from servers import ServerError
from shop.models import Order, Sale

in_process = pytest.mark.django_db(transaction=True)


def sizes(seconds: float = 0.5, **others: Any) -> argparse.Namespace:
    return argparse.Namespace(rounds=1, seconds=seconds, **others)


@in_process
def test_segments_are_measured(redis: Redis) -> None:
    options = sizes(segments=(1, 5), work=(5.0,))
    one, five = segments.measure_rounds(clients.run, create_customers(8), options, str)
    assert (one["segments"], five["segments"]) == (1, 5)
    assert [cell["work_ms"] for cell in five["work"]] == [5.0]
    assert all(cell["orders_per_s"] > 0 for row in (one, five) for cell in row["work"])
    # With one segment, no order needs another one. Orders of three units cannot empty segments of 20, so some need all.
    assert one["held_all"] == 0 < five["held_all"]
    # Each measurement saves its orders in its own sale: the warm-up, then two per number of segments.
    assert set(Order.objects.values_list("sale", flat=True)) == set(Sale.objects.values_list("pk", flat=True))
    assert Sale.objects.count() == 1 + 2 * 2


@in_process
def test_orders_that_hold_all_locks_are_counted(redis: Redis) -> None:
    """Orders of three leave 2 units in each of five segments. Selling 9 of these 10 units needs all locks."""
    sold = bursts.measure(
        clients.run, "segmented-lock", create_customers(1), seconds=60, units=100, segments=5, quantity=3
    )
    assert (sold.placed, sold.held_all) == (33, 3)


@in_process
def test_contention_is_measured(redis: Redis) -> None:
    alone, many = contention.measure_rounds(clients.run, create_customers(8), sizes(0.2, clients=(1, 8)), str)
    assert (alone["clients"], many["clients"]) == (1, 8)
    assert all(row[name]["orders_per_s"] > 0 for row in (alone, many) for name in ("optimistic", "row-lock"))
    assert all(row[name]["p50_ms"] <= row[name]["p95_ms"] for row in (alone, many) for name in contention.STRATEGIES)
    # One client has no rival, and an order that has locked its row cannot fail.
    assert alone["optimistic"]["failed_per_order"] == many["row-lock"]["failed_per_order"] == 0


@in_process
@pytest.mark.parametrize(("failures", "gave_up"), [(0, 0), (3, 0), (20, 1), (45, 2)])
def test_failed_updates_and_answers_to_try_again_are_counted(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, failures: int, gave_up: int
) -> None:
    left = [optimistic.VersionChanged] * failures
    update = optimistic.compare_and_set

    def fail_first(item: RequestItem) -> None:
        if left:
            raise left.pop()
        update(item)

    monkeypatch.setattr(optimistic, "compare_and_set", fail_first)
    results = bursts.measure(clients.run, "optimistic", create_customers(1), seconds=60, units=5)
    assert (results.placed, results.failed_updates, results.gave_up) == (5, failures, gave_up)
    assert optimistic.compare_and_set is fail_first


@in_process
@pytest.mark.parametrize("strategy", ["segmented-lock", "optimistic", "row-lock"])
def test_a_run_that_lost_orders_has_no_figures(redis: Redis, monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    monkeypatch.setattr(clients, "save", lambda requests: {})
    with pytest.raises(RuntimeError, match="orders were placed, but the tables hold"):
        bursts.measure(clients.run, strategy, create_customers(2), seconds=60, units=5)


@in_process
@pytest.mark.parametrize("fails", ["save", "connection"])
def test_an_error_of_a_client_or_a_process_ends_all(redis: Redis, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    customers = create_customers(4)

    def fail(*arguments: object) -> Mapping[Any, Any]:
        raise ValueError("the reason")

    if fails == "save":
        monkeypatch.setattr(clients, "save", fail)
        with pytest.raises(ValueError, match="the reason"):
            bursts.measure(clients.run, "row-lock", customers, seconds=60)
    else:
        monkeypatch.setattr(clients, "connection", SimpleNamespace(ensure_connection=fail))
        with pytest.raises(ValueError, match="the reason"):
            clients.run(Plan(1, "sku", "row-lock", customers, 60))
    monkeypatch.setattr(client_processes.sys, "executable", "/bin/false")
    with ClientProcesses(2) as processes, pytest.raises(RuntimeError, match="A process with clients has ended"):
        processes.run(Plan(1, "sku", "row-lock", [1, 2], 1))
    assert all(process.returncode for process in processes.processes)


@pytest.mark.django_db
def test_more_clients_than_postgres_has_connections_are_refused() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW max_connections")
        most = int(cursor.fetchone()[0])
    contention.require_connections(most - contention.OTHER_CONNECTIONS)
    with pytest.raises(ServerError, match=f"Postgres accepts {most} connections. {most} clients need"):
        contention.require_connections(most)
    assert max(contention.CLIENTS) + contention.OTHER_CONNECTIONS <= most


def test_tables_show_every_figure() -> None:
    results = ClientResults(placed=30, failed_updates=60, gave_up=10, waits_ms=[2.0] * 30, cpu=0.5)
    cells = {"orders_per_s": 100.0, "least": 90.0, "most": 110.0, "cpu": 0.5}
    rows = [
        {"segments": 1, "held_all": 0, "work": [{"work_ms": 5.0, **cells}]},
        {"segments": 5, "held_all": 3, "work": [{"work_ms": 5.0, **cells, "orders_per_s": 460.0}]},
    ]
    assert segments.figures([results], 0.3) == {"orders_per_s": 100.0, "least": 100.0, "most": 100.0, "cpu": 0.5}
    assert [list(column.cells) for column in segments.report_table(rows).columns] == [
        ["1", "5"],
        ["100   1.0 x", "460   4.6 x"],
        ["0 of 33", "3 of 33"],
    ]
    one = contention.figures([results], 0.3)
    assert one["failed_per_order"] == 2
    assert one["try_again"] == 0.25
    table = contention.report_table([{"clients": 8, "optimistic": one, "row-lock": one}])
    cells = [cell for column in table.columns for cell in column.cells]
    assert cells == ["8", "2.00", "25%", "100", "100", "2", "2"]
