"""Benchmarks of metrics, of the operator's pages and of a retry delay: figures, goals, and the form of their output."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import pytest

from loadtest.bench import contention, locks, metrics, operator_pages, retry_delay, segments, strategies
from tests.loadtest.conftest import bench, report_of


@pytest.mark.parametrize(
    ("module", "wrong"),
    [
        *product((strategies, locks, segments, contention), ("--rounds 0", "--seconds 0", "--seconds soon")),
        *product((retry_delay,), ("--rounds 0", "--delays 0", "--delays -5", "--delays 1001")),
    ],
)
def test_an_unusable_size_is_refused(module: Any, wrong: str) -> None:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(wrong.split())
    parser.parse_args([wrong.split()[0], "1"])


# Metrics


def test_a_ratio_compares_within_a_round() -> None:
    """A machine that is half as fast in one round changes no ratio, because a ratio compares figures of one round."""
    rounds = [
        {"off": {"cpu_ms": 1.0, "per_s": 100.0}, "metrics": {"cpu_ms": 1.02, "per_s": 98.0}},
        {"off": {"cpu_ms": 2.0, "per_s": 50.0}, "metrics": {"cpu_ms": 2.02, "per_s": 50.0}},
        {"off": {"cpu_ms": 1.0, "per_s": 100.0}, "metrics": {"cpu_ms": 1.05, "per_s": 99.0}},
    ]
    assert metrics.ratios(rounds, "metrics") == {
        "cpu": 1.02, "cpu_least": 1.01, "cpu_most": 1.05, "orders": 0.99, "orders_least": 0.98, "orders_most": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(("cpu", "conserved", "good"), [(1.03, True, True), (1.031, True, False), (1.0, False, False)])
def test_more_than_three_percent_or_a_lost_order_fails(cpu: float, conserved: bool, good: bool) -> None:
    report: dict[str, Any] = {"conserved": conserved, "ratios": {"metrics": {"cpu": cpu}}}
    assert metrics.is_good(report) is good


@pytest.mark.slow
def test_a_short_run_of_metrics(environment: dict[str, str]) -> None:
    done = bench(environment, "metrics", "--json", "--rounds", "2", "--seconds", "0.5", "--clients", "8")
    report = report_of(done, done.returncode)
    assert done.returncode == (0 if metrics.is_good(report) else 1)
    assert report["conserved"]
    assert list(report["figures"]) == ["off", "metrics", "metrics and traces"]
    for row in report["figures"].values():
        assert row["others"] == 0
        assert row["cpu_ms"] > 0 < row["per_s"]
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert list(report["ratios"]) == ["metrics", "metrics and traces"]
    assert all(row["cpu_least"] <= row["cpu"] <= row["cpu_most"] for row in report["ratios"].values())


# The operator's pages


@pytest.mark.parametrize(
    ("latest", "growth", "conserved", "missed"),
    [(2.0, 8.0, True, 0), (2.01, 8.0, True, 1), (2.0, 8.1, True, 1), (2.0, 8.0, False, 1)],
)
def test_a_late_figure_or_growth_misses_a_goal(latest: float, growth: float, conserved: bool, missed: int) -> None:
    report: dict[str, Any] = {"overview": {"latest_s": latest}, "list": {"growth_mb": growth}, "conserved": conserved}
    assert list(operator_pages.goals(report).values()).count(False) == missed


@pytest.mark.slow
def test_a_short_run_of_the_operators_pages(environment: dict[str, str]) -> None:
    done = bench(environment, "operator", "--json", "--orders", "2000")
    report = report_of(done, done.returncode)
    assert done.returncode == (0 if all(operator_pages.goals(report).values()) else 1)
    assert (report["orders"], report["conserved"]) == (2000, True)
    overview, orders = report["overview"], report["list"]
    assert 0 < overview["median_age_s"] <= overview["latest_s"]
    assert 0 < orders["export_first_byte_s"] <= orders["export_s"]
    assert orders["export_mb"] > 0.1
    assert report["preflight"] > 0


# The retry delay. `tests/lab/test_comparison_curves.py` runs its benchmark.


def test_percentiles_are_in_milliseconds_and_the_table_shows_every_figure() -> None:
    assert retry_delay.figures([0.001] * 98 + [0.5] * 3) == {"handoff_p50_ms": 1.0, "handoff_p99_ms": 500.0}
    rows = [
        {"lock": "redlock", "retry_delay_ms": 5.0, **retry_delay.figures([0.004]), "idle_commands_per_s": 512.5},
        {"lock": "redis", "retry_delay_ms": None, **retry_delay.figures([0.0005]), "idle_commands_per_s": 0.0},
    ]
    cells = [list(column.cells) for column in retry_delay.report_table(rows).columns]
    assert cells == [["redlock 5 ms", "redis"], ["4", "0.5"], ["4", "0.5"], ["512.5", "0"]]
    with pytest.raises(SystemExit, match="--idle: at most 9 seconds"):  # A longer count outlasts the TTL.
        retry_delay.run(argparse.Namespace(idle=10.0))
