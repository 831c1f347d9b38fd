"""`python -m loadtest.bench metrics`: its ratios, and the form of its output."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.bench import metrics
from tests.loadtest.conftest import bench, report_of


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
def test_a_short_run(environment: dict[str, str]) -> None:
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
