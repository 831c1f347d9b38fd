"""`python -m loadtest.bench strategies`: the form of its output, and its reference figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import conninfo_to_dict
from redis import Redis

from loadtest.bench import growth, references
from loadtest.bench.strategy_report import reference_lines
from loadtest.preparation import create_customers
from shop.models import Order
from tests.loadtest.conftest import bench, report_of

pytestmark = pytest.mark.django_db(transaction=True)

FIGURES = {
    *("orders_per_s", "refusals_per_s", "p50_ms", "p95_ms", "p99_ms", "client_min", "client_max", "generator_cpu"),
    *("least", "most", "others", "conserved", "cpu_ms", "refusal_cpu_ms"),
}
COSTS = {"sql_per_order", "redis_per_order", "recovery_s"}


@pytest.mark.slow
def test_the_last_line_has_every_figure(environment: dict[str, str]) -> None:
    sizes = ["--rounds", "1", "--seconds", "0.2", "--clients", "4", "--only", "redis-lock", "guarded-update"]
    report = report_of(bench(environment, "strategies", "--recovery", "--json", *sizes, STOCK_LOCK_TTL="4"))
    rates = {"queue_saved_per_s", "copy_per_s", "redis_lock_alone_per_s", "pgbench_hot_row_per_s"}
    assert set(report) == {"machine", "plain", "empty", "peer:redis-py-lock", "strategies", "cost_growth", *rates}
    for name in ("plain", "empty"):
        assert report[name]["requests_per_s"] > 0
        assert report[name]["cpu_ms"] > 0
    assert all(report[name] > 0 for name in rates)
    assert 0 <= report["machine"]["steal"] <= 1
    assert {(row["skus"], row["clients"]) for row in report["cost_growth"]} == set(growth.POINTS)
    assert all(row["cpu_ms"] > 0 for row in report["cost_growth"])
    assert set(report["strategies"]) == {"redis-lock", "guarded-update"}
    assert set(report["peer:redis-py-lock"]) == FIGURES
    locked, unlocked = report["strategies"]["redis-lock"], report["strategies"]["guarded-update"]
    for row in (locked, unlocked):
        assert set(row) == FIGURES | COSTS
        assert row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert 0 <= row["client_min"] <= row["client_max"]
    # A dead holder keeps a lease until its TTL is over; a transaction ends with its connection.
    assert locked["recovery_s"] > 2 > unlocked["recovery_s"]


def tables() -> set[str]:
    return set(connection.introspection.table_names())


def test_both_are_measured_and_leave_no_table(redis: Redis) -> None:
    before = tables()
    with connection.cursor() as cursor:
        cursor.execute(references.CREATE)  # A killed run leaves these tables behind.
    figures = references.measure(customers=create_customers(2), clients=4, seconds=0.1)
    assert set(figures) == {"redis_lock_alone_per_s", "pgbench_hot_row_per_s"}
    assert all(per_s > 0 for per_s in figures.values())
    rounds = [figures, dict.fromkeys(figures, 0.0), {name: 2 * per_s for name, per_s in figures.items()}]
    assert references.summarize_rounds(rounds) == {name: round(per_s, 1) for name, per_s in figures.items()}
    assert Order.objects.exists()
    assert tables() == before


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("UPDATE bench_stock SET on_hand = on_hand - 1;\n", "units, but .* are left or sold"),
        ("SELECT nothing;\n", r'pgbench failed: .*column "nothing" does not exist'),
    ],
)
def test_a_failed_hot_row_has_no_figure(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    before, file = tables(), tmp_path / "script.sql"
    file.write_text(script)
    monkeypatch.setattr(references, "HOT_ROW", file)
    with pytest.raises(RuntimeError, match=reason):
        references.hot_row(2, 1)
    assert tables() == before


def test_a_client_that_lost_orders_has_no_figure(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "buy_one", lambda **order: None)
    with pytest.raises(RuntimeError, match="orders were placed, but the tables hold"):
        references.redis_lock_alone(create_customers(2), 0.1)


@pytest.mark.parametrize("secret", ["hunter2", ""])
def test_pgbench_gets_the_password_in_its_environment_and_no_variable_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    password = f" password={secret}" if secret else ""
    monkeypatch.setattr(references, "conninfo", lambda: f"host=db dbname=shop options='-c a=b'{password}")
    monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=off")
    address, environment = references._server()
    assert conninfo_to_dict(address) == {"host": "db", "dbname": "shop", "options": "-c a=b"}
    given = {name: value for name, value in environment.items() if name.startswith("PG")}
    assert given == ({"PGPASSWORD": secret} if secret else {})


def test_a_strategy_that_was_not_conserved_is_not_compared() -> None:
    rows = {"redis-lock": (100.0, True), "group-commit": (900.0, False), "lua-queue": (800.0, True)}
    report = {name: {"per_s": per_s, "conserved": conserved} for name, (per_s, conserved) in rows.items()}
    figures = {"redis_lock_alone_per_s": 400.0, "pgbench_hot_row_per_s": 1000.0}
    assert list(reference_lines(report, figures, 200)) == [
        "redis-lock, one client alone, without HTTP: 400 orders per s",
        "    all clients, over HTTP: 0.25 of that",
        "pgbench, 100 clients on one hot row, three statements each: 1,000 transactions per s",
        "    redis-lock, over HTTP: 0.10 of that",
    ]
