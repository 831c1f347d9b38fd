"""What an order takes at the least: what the measurement returns, and that a run which lost something has no figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from redis import Redis

from loadtest import burst as bursts
from loadtest.bench import floors
from shop import checkout
from shop.models import Order

pytestmark = pytest.mark.django_db(transaction=True)


def tables() -> set[str]:
    return set(connection.introspection.table_names())


def test_both_are_measured_and_nothing_is_left_behind(redis: Redis) -> None:
    before = tables()
    figures = floors.measure(customers=bursts.make_customers(2), clients=4, rounds=1, seconds=0.1)
    assert set(figures) == {"redis_lock_alone_per_s", "pgbench_hot_row_per_s"}
    assert all(per_s > 0 for per_s in figures.values())
    assert Order.objects.exists()  # they are really saved
    assert tables() == before


def test_a_hot_row_that_lost_units_has_no_figure(redis: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, script = tables(), floors.HOT_ROW.read_text()
    without_lines = tmp_path / "lost.sql"
    without_lines.write_text("".join(line for line in script.splitlines(keepends=True) if "bench_line" not in line))
    monkeypatch.setattr(floors, "HOT_ROW", without_lines)
    with pytest.raises(RuntimeError, match="are left or sold"):
        floors.hot_row(2, 1)
    assert tables() == before


def test_a_client_whose_orders_are_not_there_has_no_figure(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "place", lambda **order: None)
    with pytest.raises(RuntimeError, match="placed, but the tables say"):
        floors.redis_lock_alone(bursts.make_customers(2), 0.1)
