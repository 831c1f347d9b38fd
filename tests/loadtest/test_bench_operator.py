"""`python -m loadtest.bench operator`: its goals, and the form of its output."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.bench import operator_pages
from tests.loadtest.conftest import bench, report_of


@pytest.mark.parametrize(
    ("latest", "growth", "conserved", "missed"),
    [(2.0, 8.0, True, 0), (2.01, 8.0, True, 1), (2.0, 8.1, True, 1), (2.0, 8.0, False, 1)],
)
def test_a_late_figure_or_a_growing_process_misses_a_goal(
    latest: float, growth: float, conserved: bool, missed: int
) -> None:
    report: dict[str, Any] = {"overview": {"latest_s": latest}, "list": {"growth_mb": growth}, "conserved": conserved}
    assert list(operator_pages.goals(report).values()).count(False) == missed


@pytest.mark.slow
def test_a_short_run(environment: dict[str, str]) -> None:
    done = bench(environment, "operator", "--json", "--orders", "2000")
    report = report_of(done, done.returncode)
    assert done.returncode == (0 if all(operator_pages.goals(report).values()) else 1)
    assert (report["orders"], report["conserved"]) == (2000, True)
    overview, orders = report["overview"], report["list"]
    assert 0 < overview["median_age_s"] <= overview["latest_s"]
    assert 0 < orders["export_first_byte_s"] <= orders["export_s"]
    assert orders["export_mb"] > 0.1
    assert report["preflight"] > 0
