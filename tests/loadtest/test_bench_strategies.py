"""`python -m loadtest.bench strategies`: the form of its output."""

from __future__ import annotations

import argparse

import pytest

from loadtest.bench import contention, growth, locks, segments, strategies
from tests.loadtest.conftest import bench, report_of

pytestmark = pytest.mark.slow

FIGURES = {
    *("orders_per_s", "refusals_per_s", "p50_ms", "p95_ms", "p99_ms", "client_min", "client_max", "generator_cpu"),
    *("least", "most", "others", "conserved", "cpu_ms", "refusal_cpu_ms"),
}
COSTS = {"sql_per_order", "redis_per_order", "recovery_s"}


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


@pytest.mark.parametrize("module", [strategies, locks, segments, contention])
@pytest.mark.parametrize("wrong", [("--rounds", "0"), ("--seconds", "0"), ("--seconds", "soon")], ids=" ".join)
def test_an_unusable_size_is_refused(module: object, wrong: tuple[str, str]) -> None:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(wrong)
    parser.parse_args([wrong[0], "1"])
