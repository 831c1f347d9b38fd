"""What the buyers of one process were told. Locust's workers send it to the master, who adds it up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Attempt:
    """One buyer's wish, from the first request to the last answer."""

    def __init__(self, tally: Results) -> None:
        self.tally = tally
        self.begun = time.time()
        self.answered = False

    def sold(self, order: str) -> None:
        self.tally.orders.append(order)
        self.tally.last_sold = time.time()
        self._answer()

    def refused(self, cart: Mapping[str, int]) -> None:
        """Sold out, for a cart of so many units by sku."""
        self.tally.refused += 1
        self.tally.refused_carts.append(dict(cart))
        self.tally.first_refused = min(self.tally.first_refused or self.begun, self.begun)
        self.tally.last_refused = time.time()
        self._answer()

    def busy(self) -> None:
        self.tally.busy += 1

    def _answer(self) -> None:
        self.answered = True
        self.tally.waits.append(round((time.time() - self.begun) * 1000, 2))


class Results:
    """Counts, and the moments between which they were counted. Times are seconds since 1970, waits milliseconds."""

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
    def attempt(self) -> Iterator[Attempt]:
        self.attempted += 1
        attempt = Attempt(self)
        self.began = min(self.began or attempt.begun, attempt.begun)
        try:
            yield attempt
        finally:
            if not attempt.answered:
                self.errors += 1

    def hand_over(self) -> dict[str, Any]:
        """Everything since the last call, as plain values; the tally is empty afterwards."""
        values = dict(self.__dict__)
        self.__init__()  # type: ignore[misc]
        return values

    def add(self, values: dict[str, Any]) -> None:
        """Take over what another process has handed over."""
        for name in ("attempted", "refused", "refused_carts", "busy", "errors", "orders", "waits"):
            setattr(self, name, getattr(self, name) + values[name])
        for name, pick in (("began", min), ("first_refused", min), ("last_sold", max), ("last_refused", max)):
            both = [moment for moment in (getattr(self, name), values[name]) if moment is not None]
            setattr(self, name, pick(both) if both else None)

    def rates(self) -> dict[str, float]:
        """Orders and refusals per second, each over its own part of the burst; waits in milliseconds.

        A wait is what a buyer waits: from the first request to the answer that counts, being told to try again
        included.
        """
        return {
            "orders_per_s": _rate(len(self.orders), self.began, self.last_sold),
            "refusals_per_s": _rate(self.refused, self.first_refused, self.last_refused),
            **percentiles(self.waits),
        }


def percentiles(waits: list[float]) -> dict[str, float]:
    """How long half of them, and all but one in a hundred, waited; zero where nobody did."""
    ordered = sorted(waits)
    return {"p50_ms": _percentile(ordered, 50), "p99_ms": _percentile(ordered, 99)}


def _rate(count: int, since: float | None, until: float | None) -> float:
    return round(count / (until - since), 1) if since and until and until > since else 0.0


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0
