"""Requests in the overview: refusals per second and response times, from the metrics of all processes."""

from __future__ import annotations

import math

import pytest

from shop.overview.requests import Counts, Watch, between, quantile


def test_only_what_came_between_two_moments_counts() -> None:
    before = Counts(
        0.0,
        {"placed": 5, "sold-out": 7, "busy": 1},
        {"409": 7, "503": 1},
        {0.1: 10, 0.5: 10, math.inf: 13},
        {("7", "sold-out"): 5},
    )
    now = Counts(
        10.0,
        {"placed": 9, "sold-out": 27, "busy": 1, "over-limit": 30},
        {"201": 4, "409": 50, "503": 4},
        {0.1: 20, 0.5: 20, math.inf: 23},
        {("7", "sold-out"): 25.0, ("7", "over-limit"): 30.0, ("8", "sold-out"): 10.0, ("other", "busy"): 9.0},
    )
    found = between(before, now)
    assert list(found.refused.items()) == [("over-limit", 3.0), ("sold-out", 2.0)]
    assert {sale: list(refused.items()) for sale, refused in found.by_sale.items()} == {
        7: [("over-limit", 3.0), ("sold-out", 2.0)],
        8: [("sold-out", 1.0)],
    }
    assert found.failed == 0.06, "3 of 50"
    assert (found.p50_ms, found.p99_ms) == (50, 99)


def test_after_a_break_only_the_last_seconds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    read = [(0.0, 0), (7200.0, 1000), (7201.0, 1500)]
    counts = iter([Counts(at, {"sold-out": refused}, {}, {}) for at, refused in read])
    monkeypatch.setattr("shop.overview.requests.read", lambda: next(counts))
    watch = Watch()
    *_, found = (watch() for _ in read)
    assert found.refused == {"sold-out": 500.0}


@pytest.mark.parametrize(
    ("within", "share", "seconds"),
    [
        ({}, 0.5, None),
        ({0.1: 0, math.inf: 0}, 0.5, None),
        ({0.1: 10, math.inf: 10}, 0.5, 0.05),
        ({0.1: 0, 0.2: 10, math.inf: 10}, 0.5, 0.15),
        ({0.1: 1, math.inf: 10}, 0.99, 0.1),
    ],
)
def test_a_share_is_estimated_within_its_bounds(
    within: dict[float, float], share: float, seconds: float | None
) -> None:
    assert quantile(within, share) == (None if seconds is None else pytest.approx(seconds))
