"""The reference figures of the strategy benchmark. A run that lost units or orders has no figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import conninfo_to_dict
from redis import Redis

from loadtest.bench import references
from loadtest.bench.strategy_report import reference_lines
from loadtest.preparation import create_customers
from shop.models import Order

pytestmark = pytest.mark.django_db(transaction=True)


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
