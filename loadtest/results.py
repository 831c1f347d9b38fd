"""Counts of the answers to the buyers of one process. Locust workers send their counts to the master."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class OrderAttempt:
    """One order of one buyer, from the first request to the final answer."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.started = time.time()
        self.answered = False

    def sold(self, order: str) -> None:
        self.results.orders.append(order)
        self.results.last_sold = time.time()
        self._finish()

    def refused(self, cart: Mapping[str, int]) -> None:
        """Record that a cart, as units by sku, was refused as sold out."""
        self.results.refused += 1
        self.results.refused_carts.append(dict(cart))
        self.results.first_refused = min(self.results.first_refused or self.started, self.started)
        self.results.last_refused = time.time()
        self._finish()

    def busy(self) -> None:
        """Record that the shop asked the buyer to retry."""
        self.results.busy += 1

    def _finish(self) -> None:
        self.answered = True
        self.results.waits.append(round((time.time() - self.started) * 1000, 2))


class Results:
    """Counts of answers to buyers.

    Times of answers are Unix times in seconds, to compute rates; waits are in milliseconds.
    """

    def __init__(self) -> None:
        self.attempted = 0
        self.refused = 0
        self.busy = 0
        self.errors = 0
        self.orders: list[str] = []
        self.refused_carts: list[dict[str, int]] = []
        self.waits: list[float] = []
        self.began: float | None = None
        self.last_sold: float | None = None
        self.first_refused: float | None = None
        self.last_refused: float | None = None

    @contextmanager
    def attempt(self) -> Iterator[OrderAttempt]:
        self.attempted += 1
        attempt = OrderAttempt(self)
        self.began = min(self.began or attempt.started, attempt.started)
        try:
            yield attempt
        finally:
            if not attempt.answered:
                self.errors += 1

    def take(self) -> dict[str, Any]:
        """Return all counts since the last call as plain values, and start again from zero."""
        values = dict(self.__dict__)
        self.__init__()  # type: ignore[misc]
        return values

    def add(self, values: dict[str, Any]) -> None:
        """Add the values that `take` has returned in another process."""
        for name in ("attempted", "refused", "refused_carts", "busy", "errors", "orders", "waits"):
            setattr(self, name, getattr(self, name) + values[name])
        for name, pick in (("began", min), ("first_refused", min), ("last_sold", max), ("last_refused", max)):
            both = [moment for moment in (getattr(self, name), values[name]) if moment is not None]
            setattr(self, name, pick(both) if both else None)

    def rates(self) -> dict[str, float]:
        """Return orders per second until the last order, refusals per second from first to last, and wait percentiles.

        A wait lasts from the first request to the final answer, retries included.
        """
        return {
            "orders_per_s": _rate(len(self.orders), self.began, self.last_sold),
            "refusals_per_s": _rate(self.refused, self.first_refused, self.last_refused),
            **percentiles(self.waits),
        }


def percentiles(waits: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile of waits in milliseconds; 0 without waits."""
    ordered = sorted(waits)
    return {"p50_ms": _percentile(ordered, 50), "p99_ms": _percentile(ordered, 99)}


def _rate(count: int, since: float | None, until: float | None) -> float:
    return round(count / (until - since), 1) if since and until and until > since else 0.0


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0
