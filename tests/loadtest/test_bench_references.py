"""What orders are held against: what the measurement returns, and that a run which lost something has no figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import conninfo_to_dict
from redis import Redis

from loadtest import burst as bursts
from loadtest.bench import references, strategies
from shop.models import Order

pytestmark = pytest.mark.django_db(transaction=True)


def tables() -> set[str]:
    return set(connection.introspection.table_names())


def test_both_are_measured_and_nothing_is_left_behind(redis: Redis) -> None:
    before = tables()
    figures = references.measure(customers=bursts.make_customers(2), clients=4, rounds=1, seconds=0.1)
    assert set(figures) == {"redis_lock_alone_per_s", "pgbench_hot_row_per_s"}
    assert all(per_s > 0 for per_s in figures.values())
    assert Order.objects.exists()  # they are really saved
    assert tables() == before


def test_a_hot_row_that_lost_units_has_no_figure(redis: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, script = tables(), references.HOT_ROW.read_text()
    without_lines = tmp_path / "lost.sql"
    without_lines.write_text("".join(line for line in script.splitlines(keepends=True) if "bench_line" not in line))
    monkeypatch.setattr(references, "HOT_ROW", without_lines)
    with pytest.raises(RuntimeError, match="are left or sold"):
        references.hot_row(2, 1)
    assert tables() == before


def test_a_hot_row_that_a_killed_run_left_behind_is_made_anew(redis: Redis) -> None:
    with connection.cursor() as cursor:
        cursor.execute(references.MADE)
    assert references.hot_row(1, 1) > 0


def test_pgbench_says_why_it_measured_nothing(redis: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.sql"
    nonsense.write_text("SELECT nothing;\n")
    monkeypatch.setattr(references, "HOT_ROW", nonsense)
    with pytest.raises(RuntimeError, match=r'measured nothing: .*column "nothing" does not exist'):
        references.hot_row(1, 1)


@pytest.mark.parametrize("secret", ["hunter2", ""])
def test_the_password_is_no_argument_and_no_variable_of_the_callers_counts(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    password = f" password={secret}" if secret else ""
    monkeypatch.setattr(references, "conninfo", lambda: f"host=db dbname=shop options='-c a=b'{password}")
    monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=off")
    where, environment = references._server()
    assert conninfo_to_dict(where) == {"host": "db", "dbname": "shop", "options": "-c a=b"}
    given = {name: value for name, value in environment.items() if name.startswith("PG")}
    assert given == ({"PGPASSWORD": secret} if secret else {})


def test_what_was_not_conserved_is_held_against_nothing() -> None:
    rows = {"redis-lock": (100.0, True), "group-commit": (900.0, False), "lua-queue": (800.0, True)}
    report = {name: {"per_s": per_s, "conserved": conserved} for name, (per_s, conserved) in rows.items()}
    by_itself = {"redis_lock_alone_per_s": 400.0, "pgbench_hot_row_per_s": 1000.0}
    assert list(strategies.beside(report, by_itself, 200)) == [
        "redis-lock, one client alone, without the web: 400 orders per s",
        "    all clients, through the web: 0.25 of it",
        "pgbench, 100 clients at one hot row, three statements each: 1,000 transactions per s",
        "    redis-lock, through the web: 0.10 of it",
    ]


def test_a_client_whose_orders_are_not_there_has_no_figure(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "place_order", lambda **order: None)
    with pytest.raises(RuntimeError, match="placed, but the tables say"):
        references.redis_lock_alone(bursts.make_customers(2), 0.1)
