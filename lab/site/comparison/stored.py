"""The stored result of the benchmarks: `lab/comparison.json`, which `manage.py compare` writes.

The file is one JSON object with a member for each part that was measured, `strategies` and `locks`:

    {"strategies": {
        "made": "2026-01-31",        the day (UTC)
        "short": false,              whether it was a short run: a few seconds each, for orientation only
        "source": "3f0c…",           `source_hash` of the code that was measured
        "machine": {"cpus": 2, "processor": "x86_64", "python": "3.11.7"},
        "report": {…}                what `python -m loadtest.bench strategies --json --recovery` said
     },
     "locks": {…}}                   the same, of `python -m loadtest.bench locks --json --recovery`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from django.conf import settings

from lab.claims import result_store
from lab.claims.behaviour import hash_of_files as hash_of
from lab.ladder.catalogue import LADDER

Part = Literal["strategies", "locks"]
PARTS: tuple[Part, ...] = get_args(Part)
FILE = Path(settings.BASE_DIR) / "lab" / "claims" / "comparison.json"
PEER = "peer:redis-py-lock"
SOURCES: Mapping[Part, Sequence[str]] = {
    "strategies": ("locking", "inventory", "shop", "loadtest/bench"),
    "locks": ("locking", "loadtest/bench"),
}
"""The code that is measured, and that measures."""

RUNGS: Mapping[Part, Mapping[str, tuple[str, ...]]] = {
    "strategies": {
        "insert-lock": ("lock-table-insert",),
        "lock-table": ("lock-table-for-update",),
        "session-lock": ("postgres-advisory-lock",),
    },
    "locks": {
        "redis": ("fence", "renewal", "woken"),
        "reentrant": ("re-entrant",),
        "advisory": ("postgres-advisory-lock",),
        "row": ("lock-table-for-update",),
        "insert": ("lock-table-insert",),
        "process": ("process-lock",),
        "thread": ("thread-lock",),
        "kazoo": ("kazoo-recipe",),
    },
}
"""The rungs that run what was measured, where they have other names."""


@dataclass(frozen=True)
class Row:
    """What was measured of one strategy or lock; None for what does not apply, or was not measured.

    Attributes:
        rungs: those that run it, if it is on the ladder.
        peer: whether it is somebody else's, to compare with.
        per_s: orders a second with all clients asking at once, through REST; of a lock, uncontended pairs of acquire
            and release.
        p50_ms: what half of the buyers waited at most; of a lock, from before a release until a waiter holds it.
        p95_ms: the same for all but one in twenty.
        fairness: what the unluckiest got for each that the luckiest got, from 0 to 1: answers of a client; of a lock,
            turns of a process that takes it again at once.
        recovery_s: seconds from the death of whoever was selling, or held the lock, until another one had.
    """

    name: str
    rungs: tuple[str, ...]
    peer: bool
    per_s: float | None
    p50_ms: float | None
    p95_ms: float | None
    fairness: float | None
    recovery_s: float | None


@dataclass(frozen=True)
class Measured:
    """A part of the comparison.

    Attributes:
        made: the day, as in 2026-01-31.
        short: whether it was a short run.
        stale: whether the code has changed since.
        empty_per_s: answers a second of an endpoint that does nothing; None for locks.
    """

    made: str
    short: bool
    stale: bool
    machine: Mapping[str, Any]
    rows: Sequence[Row]
    empty_per_s: float | None


def load(part: Part) -> Measured | None:
    """What is stored of a part; None when it was never measured, or cannot be read."""

    def parse(said: Any) -> Measured | None:
        if (stored := said.get(part)) is None:
            return None
        report = stored["report"]
        rows = _strategies(report) if part == "strategies" else _locks(report)
        empty = float(report["empty"]["requests_per_s"]) if part == "strategies" else None
        stale = stored["source"] != source_hash(part)
        return Measured(stored["made"], stored["short"], stale, stored["machine"], tuple(rows), empty)

    return result_store.read(FILE, parse, f"compare {part}")


def store(part: Part, measured: Mapping[str, Any]) -> None:
    """Keep what was measured of a part; what is stored of the other stays."""
    result_store.change(FILE, lambda stored: {**stored, part: measured})


def source_hash(part: Part) -> str:
    """A hash of the code that a part measures."""
    return hash_of(*(Path(settings.BASE_DIR) / room for room in SOURCES[part]))


def _strategies(report: Mapping[str, Any]) -> Iterator[Row]:
    for name, row in {**report["strategies"], PEER: report[PEER]}.items():
        yield Row(
            name.removeprefix("peer:"),
            rungs=_rungs("strategies", name),
            peer=name == PEER,
            per_s=_figure(row["orders_per_s"]),
            p50_ms=_figure(row["p50_ms"]),
            p95_ms=_figure(row["p95_ms"]),
            fairness=_share(row["client_min"], row["client_max"]),
            recovery_s=_figure(row.get("recovery_s")),
        )


def _locks(report: Mapping[str, Any]) -> Iterator[Row]:
    for kind in ("locks", "peers"):
        for name, row in report[kind].items():
            yield Row(
                name,
                rungs=_rungs("locks", name),
                peer=kind == "peers",
                per_s=1e6 / row["pair_us"] if row["pair_us"] else None,
                p50_ms=_figure(row["handoff_p50_ms"]),
                p95_ms=_figure(row["handoff_p95_ms"]),
                fairness=_share(row["greedy_min"], row["greedy_max"]),
                recovery_s=_figure(row.get("recovery_s")),
            )


def _rungs(part: Part, name: str) -> tuple[str, ...]:
    return tuple(slug for slug in RUNGS[part].get(name, (name,)) if slug in LADDER)


def _figure(value: Any) -> float | None:
    return None if value is None else float(value)


def _share(least: float, most: float) -> float:
    return least / most if most else 0.0
