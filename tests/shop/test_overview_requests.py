"""What the overview says of requests: refusals in a second and times of answers, from the metrics of real processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from shop.overview.requests import Counts, Requests, Watch, between, quantile
from tests.factories import new_customer, on_sale
from tests.shop.test_metrics import send
from tests.shop.web_server import web_server
from tests.waiting import wait_for


@pytest.mark.django_db(transaction=True)
def test_refusals_of_a_web_server_are_counted_by_reason(redis: Redis, settings: Any, tmp_path: Path) -> None:
    offer = on_sale({"a": 3})
    settings.METRICS, settings.METRICS_FOLDER = True, str(tmp_path / "metrics")
    watch = Watch()
    assert watch() is None, "no process has counted anything yet"
    with web_server(METRICS_FOLDER=settings.METRICS_FOLDER, ORDER_RATE="99", SOLD_OUT_TTL="0") as (port, _):
        before = watch()
        assert before is not None
        assert (before.refused, before.p50, before.p99) == ({}, None, None)
        assert [send(port, offer, new_customer()) for _ in range(5)].count(409) == 2
        seen: list[Requests | None] = []
        # A process writes what it has counted a moment later.
        wait_for(lambda: seen.append(watch()) or bool(seen[-1] and seen[-1].refused), "the refusals")  # type: ignore[func-returns-value]
        found = seen[-1]
    assert found is not None
    assert list(found.refused) == ["sold-out"]
    assert 0 < found.refused["sold-out"] <= 2
    assert found.p50 is not None
    assert found.p99 is not None
    assert 0 < found.p50 <= found.p99 < 20
    settings.METRICS = False
    assert watch() is None


def test_only_what_came_between_two_moments_counts() -> None:
    before = Counts(
        0.0, {"placed": 5, "sold-out": 7, "busy": 1}, {"409": 7, "503": 1}, {0.1: 10, 0.5: 10, math.inf: 13}
    )
    now = Counts(
        10.0,
        {"placed": 9, "sold-out": 27, "busy": 1, "over-limit": 30},
        {"201": 4, "409": 50, "503": 4},
        {0.1: 20, 0.5: 20, math.inf: 23},
    )
    found = between(before, now)
    assert list(found.refused.items()) == [("over-limit", 3.0), ("sold-out", 2.0)]
    assert found.failed == 0.06, "3 of 50"
    assert (found.p50_ms, found.p99_ms) == (50, 99)


def test_after_a_break_only_the_last_seconds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(
        [
            Counts(0.0, {"sold-out": 0}, {}, {}),
            Counts(7200.0, {"sold-out": 1000}, {}, {}),
            Counts(7201.0, {"sold-out": 1500}, {}, {}),
        ]
    )
    monkeypatch.setattr("shop.overview.requests.read", lambda: next(counts))
    watch = Watch()
    for _ in range(2):
        watch()
    found = watch()
    assert found is not None
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
