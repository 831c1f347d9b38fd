"""Stored curves of the comparison: the gain of segments, the gain of shorter pauses, and the cost of contention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = {
    "segments": ("clients", "rounds", "seconds", "stock", "quantity"),
    "contention": ("attempts", "rounds", "seconds"),
    "retry-delay": ("nodes", "rounds", "handoffs"),
}
"""For each part, the names of those values in a report that say how large the run was."""


@dataclass(frozen=True)
class SegmentedSale:
    """Orders per second for one number of segments and one duration of work in the critical section.

    Attributes:
        work_ms: milliseconds for which each order pauses while it holds its lock.
        cpu: share of the machine's processors that was busy, from 0 to 1.
    """

    work_ms: float
    per_s: float
    cpu: float


@dataclass(frozen=True)
class SegmentsRow:
    """The figures that were measured with one number of segments.

    Attributes:
        sales: a `SegmentedSale` for each duration of work.
        held_all: number of orders that had to hold the locks of all segments while a small stock was sold out.
    """

    segments: int
    sales: Sequence[SegmentedSale]
    held_all: float


@dataclass(frozen=True)
class ContendedSale:
    """The cost of one strategy's orders while a number of clients order one product.

    Attributes:
        p50_ms: median time in milliseconds from a client's request until its order is placed.
        p95_ms: the 95th percentile of the same time.
        failed_per_order: failed updates per order placed.
        try_again: share of the answers that told a client to try again, from 0 to 1.
    """

    per_s: float
    p50_ms: float
    p95_ms: float
    failed_per_order: float
    try_again: float


@dataclass(frozen=True)
class ContentionRow:
    """The figures that were measured with one number of clients."""

    clients: int
    optimistic: ContendedSale
    pessimistic: ContendedSale


@dataclass(frozen=True)
class HandOverRow:
    """How soon a lock is handed over, and how many commands its idle waiter sends.

    Attributes:
        lock: name of the measured lock.
        retry_delay_ms: average pause of a waiter in milliseconds. None if a release wakes the waiter.
        p50_ms: median time in milliseconds from before a release until a waiter in another process has the lock.
        p99_ms: the 99th percentile of the same time.
        commands_per_s: commands that an idle waiter sends per second, to all nodes together.
    """

    lock: str
    retry_delay_ms: float | None
    p50_ms: float
    p99_ms: float
    commands_per_s: float


def segments(report: Mapping[str, Any]) -> list[SegmentsRow]:
    """Return the rows of a report of `python -m loadtest.bench segments --json`.

    Raises:
        ValueError: there are no rows, they differ in the durations of work, or a rate of orders is not above 0.
    """
    rows = [
        SegmentsRow(
            int(row["segments"]),
            [
                SegmentedSale(float(cell["work_ms"]), _positive(cell["orders_per_s"]), float(cell["cpu"]))
                for cell in row["work"]
            ],
            float(row["held_all"]),
        )
        for row in report["segments"]
    ]
    if len({tuple(sale.work_ms for sale in row.sales) for row in rows}) != 1:
        raise ValueError("Every number of segments is measured with the same amounts of work.")
    return rows


def contention(report: Mapping[str, Any]) -> list[ContentionRow]:
    """Return the rows of a report of `python -m loadtest.bench contention --json`.

    Raises:
        ValueError: there are no rows, or a rate of orders or a wait is not above 0.
    """
    rows = [
        ContentionRow(int(row["clients"]), _contended(row["optimistic"]), _contended(row["row-lock"]))
        for row in report["clients"]
    ]
    if not rows:
        raise ValueError("A curve needs a measurement.")
    return rows


def retry_delay(report: Mapping[str, Any]) -> list[HandOverRow]:
    """Return the rows of a report of `python -m loadtest.bench retry-delay --json`.

    Raises:
        ValueError: no row has a retry delay, every row has one, or a delay or the time of a hand-over is not above 0.
    """
    rows = [
        HandOverRow(
            lock=str(row["lock"]),
            retry_delay_ms=None if row["retry_delay_ms"] is None else _positive(row["retry_delay_ms"]),
            p50_ms=_positive(row["handoff_p50_ms"]),
            p99_ms=_positive(row["handoff_p99_ms"]),
            commands_per_s=float(row["idle_commands_per_s"]),
        )
        for row in report["locks"]
    ]
    if len({row.retry_delay_ms is None for row in rows}) != 2:
        raise ValueError("A curve needs a retry delay, and a lock to compare it with.")
    return rows


def _contended(cell: Mapping[str, Any]) -> ContendedSale:
    return ContendedSale(
        per_s=_positive(cell["orders_per_s"]),
        p50_ms=_positive(cell["p50_ms"]),
        p95_ms=_positive(cell["p95_ms"]),
        failed_per_order=float(cell["failed_per_order"]),
        try_again=float(cell["try_again"]),
    )


def _positive(value: Any) -> float:
    """Return a figure as a number. Pages divide by it, or draw it on a logarithmic axis.

    Raises:
        ValueError: the figure is not above 0.
    """
    if (figure := float(value)) <= 0:
        raise ValueError(f"{figure:g} is no measurement.")
    return figure
