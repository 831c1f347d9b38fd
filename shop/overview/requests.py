"""The results of order requests in the last seconds, from the metrics of the processes on this machine."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from django.conf import settings
from prometheus_client.multiprocess import MultiProcessCollector

from shop.metrics import definitions
from shop.metrics.folder import MetricsFolder

Key = TypeVar("Key")

SPAN = 10.0
"""Length in seconds of the period whose requests are shown."""
FEW = 20.0
"""The errors are divided by at least this number of requests, so that one error in a few requests raises no alert."""
ACCEPTED = ("placed", "queued", "replayed")
"""Results of accepted requests. All other results are refusals."""


@dataclass(frozen=True)
class Counts:
    """The counters of order requests at one moment. They begin at 0 when the first process on this machine starts.

    Args:
        at: monotonic time of the reading, in seconds.
        results: order requests by result.
        refusals: refused order requests by sale and problem type.
        answers: order requests by HTTP status.
        within: for each bound in seconds, the number of requests that took at most this time.
    """

    at: float
    results: Mapping[str, float]
    answers: Mapping[str, float]
    within: Mapping[float, float]
    refusals: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Requests:
    """Figures about the order requests of the last seconds.

    Args:
        refused: refusals per second by problem type, the most frequent first.
        failed: share of responses with a server error, from 0 to 1.
        p50, p99: median and 99th percentile of the response time in seconds; None if there were no requests.
        by_sale: refusals per second by sale id and problem type, the most frequent type first.
    """

    refused: Mapping[str, float]
    failed: float
    p50: float | None
    p99: float | None
    by_sale: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def p50_ms(self) -> int | None:
        return None if self.p50 is None else round(self.p50 * 1000)

    @property
    def p99_ms(self) -> int | None:
        return None if self.p99 is None else round(self.p99 * 1000)


class Watch:
    """Compares the counters now with the counters of about `SPAN` seconds ago."""

    def __init__(self) -> None:
        self._seen: deque[Counts] = deque()

    def __call__(self) -> Requests | None:
        """Return the figures of about the last `SPAN` seconds; None if there are no metrics here, see `read`.

        The figures are the differences between the counters now and the counters at an earlier call of this method:
        the newest call between `SPAN` and twice `SPAN` seconds ago, or else the oldest call within the last `SPAN`
        seconds.
        """
        now = read()
        if now is None:
            return None
        while self._seen and self._seen[0].at < now.at - 2 * SPAN:
            self._seen.popleft()  # These counters are too old: no operator has opened the overview for a while.
        self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1].at <= now.at - SPAN:
            self._seen.popleft()
        return between(self._seen[0], now)


def read() -> Counts | None:
    """Return the counters of all processes on this machine; None if metrics are off or their folder is missing."""
    if not settings.METRICS:
        return None
    try:
        families = MultiProcessCollector.merge(MetricsFolder(Path(settings.METRICS_FOLDER)).files())
    except OSError:
        return None
    results: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    within: Counter[float] = Counter()
    refusals: Counter[tuple[str, str]] = Counter()
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == definitions.ORDERS.name:
            results[sample.labels["result"]] += sample.value
        elif sample.name == definitions.REFUSALS.name:
            refusals[sample.labels["sale"], sample.labels["result"]] += sample.value
        elif sample.name == f"{definitions.REQUESTS.name}_count":
            answers[sample.labels["status"]] += sample.value
        elif sample.name == f"{definitions.REQUESTS.name}_bucket":
            within[float(sample.labels["le"])] += sample.value
    return Counts(time.monotonic(), results, answers, within, refusals)


def between(before: Counts, now: Counts) -> Requests:
    """Return the figures about the requests between two readings of the counters."""
    seconds = max(now.at - before.at, 1.0)
    grown = _growth(before.results, now.results)
    refused = {result: count / seconds for result, count in grown.items() if result not in ACCEPTED}
    by_sale: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for (sale, result), count in _growth(before.refusals, now.refusals).items():
        if sale.isdecimal():
            by_sale[int(sale)][result] = count / seconds
    within = {bound: count - before.within.get(bound, 0) for bound, count in sorted(now.within.items())}
    answers = {status: count - before.answers.get(status, 0) for status, count in now.answers.items()}
    errors = sum(count for status, count in answers.items() if status.startswith("5"))
    failed = errors / max(FEW, sum(answers.values()))
    return Requests(refused, failed, quantile(within, 0.5), quantile(within, 0.99), dict(by_sale))


def _growth(before: Mapping[Key, float], now: Mapping[Key, float]) -> dict[Key, float]:
    """Return the growth of each counter that has grown, the largest growth first."""
    grown = {key: count - before.get(key, 0) for key, count in now.items() if count > before.get(key, 0)}
    return dict(sorted(grown.items(), key=lambda pair: -pair[1]))


def quantile(within: Mapping[float, float], share: float) -> float | None:
    """Estimate a quantile of the response time in seconds, as Prometheus's `histogram_quantile` does.

    Args:
        within: for each bound in seconds, in ascending order, the number of requests that took at most this time.
        share: the quantile, from 0 to 1.
    """
    if not within or not (total := max(within.values())):
        return None
    lower, below = 0.0, 0.0
    for bound, count in within.items():
        if count >= share * total:
            return (
                lower if bound == float("inf") else lower + (bound - lower) * (share * total - below) / (count - below)
            )
        lower, below = bound, count
    return lower
