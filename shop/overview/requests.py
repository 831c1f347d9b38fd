"""How order requests were answered in the last seconds, by the metrics of the processes on this machine."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from prometheus_client.multiprocess import MultiProcessCollector

from shop.metrics import definitions
from shop.metrics.folder import MetricsFolder

SPAN = 10.0
"""Seconds over which requests are counted."""
FEW = 20.0
"""Of fewer requests, a single error is no share that says anything."""
ACCEPTED = ("placed", "queued", "replayed")
"""Results that are no refusals."""


@dataclass(frozen=True)
class Counts:
    """What was counted since the processes have started.

    Args:
        results: order requests by result.
        answers: order requests by the status of the answer.
        within: number of answers that took at most a bound, by the bound in seconds.
    """

    at: float
    results: Mapping[str, float]
    answers: Mapping[str, float]
    within: Mapping[float, float]


@dataclass(frozen=True)
class Requests:
    """Order requests of the last seconds.

    Args:
        refused: refusals in a second by the type of the problem, the most frequent first.
        failed: share of the answers with an error of the server, from 0 to 1.
        p50, p99: seconds within which half of the requests, and 99 of 100, were answered; None without any.
    """

    refused: Mapping[str, float]
    failed: float
    p50: float | None
    p99: float | None

    @property
    def p50_ms(self) -> int | None:
        return None if self.p50 is None else round(self.p50 * 1000)

    @property
    def p99_ms(self) -> int | None:
        return None if self.p99 is None else round(self.p99 * 1000)


class Watch:
    """Compares what is counted now with what was counted `SPAN` seconds ago."""

    def __init__(self) -> None:
        self._seen: deque[Counts] = deque()

    def __call__(self) -> Requests | None:
        """Return the requests since the call `SPAN` seconds ago, or since the first call if all are newer.

        None if nothing is counted here, see `read`.
        """
        now = read()
        if now is None:
            return None
        while self._seen and self._seen[0].at < now.at - 2 * SPAN:
            self._seen.popleft()  # Nobody has looked for a while.
        self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1].at <= now.at - SPAN:
            self._seen.popleft()
        return between(self._seen[0], now)


def read() -> Counts | None:
    """Return what the processes of this machine have counted; None if they count nothing, or their folder is away."""
    if not settings.METRICS:
        return None
    try:
        families = MultiProcessCollector.merge(MetricsFolder(Path(settings.METRICS_FOLDER)).files())
    except OSError:
        return None
    results: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    within: Counter[float] = Counter()
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == definitions.ORDERS.name:
            results[sample.labels["result"]] += sample.value
        elif sample.name == f"{definitions.REQUESTS.name}_count":
            answers[sample.labels["status"]] += sample.value
        elif sample.name == f"{definitions.REQUESTS.name}_bucket":
            within[float(sample.labels["le"])] += sample.value
    return Counts(time.monotonic(), results, answers, within)


def between(before: Counts, now: Counts) -> Requests:
    """Return the requests between two moments."""
    seconds = max(now.at - before.at, 1.0)
    refused = {
        result: (count - before.results.get(result, 0)) / seconds
        for result, count in now.results.items()
        if result not in ACCEPTED and count > before.results.get(result, 0)
    }
    within = {bound: count - before.within.get(bound, 0) for bound, count in sorted(now.within.items())}
    answers = {status: count - before.answers.get(status, 0) for status, count in now.answers.items()}
    errors = sum(count for status, count in answers.items() if status.startswith("5"))
    failed = errors / max(FEW, sum(answers.values()))
    by_frequency = dict(sorted(refused.items(), key=lambda pair: -pair[1]))
    return Requests(by_frequency, failed, quantile(within, 0.5), quantile(within, 0.99))


def quantile(within: Mapping[float, float], share: float) -> float | None:
    """Return the seconds within which a share of the requests was answered, as Prometheus estimates it.

    Args:
        within: answers that took at most so many seconds, by the bound, in ascending order.
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
