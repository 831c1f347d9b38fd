"""The stored result of the benchmarks: `lab/claims/comparison.json`, which `manage.py compare` writes.

The file is a JSON object with a member for each part that was measured:

    {"strategies": {
        "made": "2026-01-31",        the day (UTC)
        "short": false,              whether it was a short run, for orientation only
        "source": "3f0c…",           `behaviour_of_comparison` of the code that was measured
        "machine": {"cpus": 2, "processor": "x86_64", "python": "3.11.7"},
        "report": {…}                the output of `python -m loadtest.bench strategies --json --recovery`
     },
     "locks": {…},                   the same for `python -m loadtest.bench locks --json --recovery`
     "segments": {…},                the same for `python -m loadtest.bench segments --json`
     "contention": {…},              the same for `python -m loadtest.bench contention --json`
     "retry-delay": {…}}             the same for `python -m loadtest.bench retry-delay --json`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from django.conf import settings

from lab.claims import curves, result_store
from lab.claims.staleness import Part, behaviour_of_comparison
from lab.ladder.catalogue import LADDER

PARTS: tuple[Part, ...] = get_args(Part)
TABLES: tuple[Part, ...] = ("strategies", "locks")
"""The parts that have a row for each strategy or lock."""
FILE = Path(settings.BASE_DIR) / "lab" / "claims" / "comparison.json"
PEER = "peer:redis-py-lock"
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
        "redisson": ("redisson-watchdog",),
        "kazoo": ("kazoo-recipe",),
    },
}
"""For each measured strategy or lock whose name is not the slug of a rung: the rungs that run it."""


@dataclass(frozen=True)
class Measurement:
    """The figures of one strategy or lock. A figure is None if it does not apply or was not measured.

    Attributes:
        rungs: slugs of the rungs that run it.
        peer: whether it is measured for comparison only: code of others, or the protocol of a library for Java.
        per_s: orders per second through REST while all clients order at the same time. For a lock: pairs of acquire and
            release per second without contention.
        p50_ms: median wait of a customer in milliseconds. For a lock: median time from before a release until a waiter
            in another process has the lock.
        p95_ms: the 95th percentile of the same time.
        fairness: smallest share divided by largest share, from 0 to 1. A share is the number of answers to one client.
            For a lock: the number of turns of a process that acquires it again immediately.
        recovery_s: seconds from the death of the process that sells until another process sells. For a lock: from the
            death of its holder until another process has the lock.
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
    """One part of the comparison.

    Attributes:
        made: the day (UTC), such as 2026-01-31.
        short: whether it was a short run.
        stale: whether the code has changed since then.
        machine: `cpus`, `processor` and `python`.
        rows: a `Measurement` for each strategy or lock, or a row of `lab.claims.curves` for each point of the curves.
        sizes: sizes of the run, as named in `lab.claims.curves.SIZES`.
        empty_per_s: answers per second of an endpoint that does nothing. None for all parts except `strategies`.
    """

    made: str
    short: bool
    stale: bool
    machine: Mapping[str, Any]
    rows: Sequence[Any]
    sizes: Mapping[str, Any]
    empty_per_s: float | None


def load(part: Part) -> Measured | None:
    """Return the stored result of a part. None if the part was never measured, or if the file cannot be read."""

    def parse(file: Any) -> Measured | None:
        if (stored := file.get(part)) is None:
            return None
        report = stored["report"]
        return Measured(
            made=stored["made"],
            short=stored["short"],
            stale=stored["source"] != behaviour_of_comparison(part),
            machine=stored["machine"],
            rows=tuple(ROWS[part](report)),
            sizes={name: report["machine"][name] for name in curves.SIZES.get(part, ())},
            empty_per_s=float(report["empty"]["requests_per_s"]) if part == "strategies" else None,
        )

    return result_store.read(FILE, parse, "lab refresh")


def store(part: Part, measured: Mapping[str, Any]) -> None:
    """Store the result of a part. Results of other parts stay."""
    result_store.change(FILE, lambda stored: {**stored, part: measured})


def _strategies(report: Mapping[str, Any]) -> Iterator[Measurement]:
    for name, row in {**report["strategies"], PEER: report[PEER]}.items():
        yield Measurement(
            name.removeprefix("peer:"),
            rungs=_rungs("strategies", name),
            peer=name == PEER,
            per_s=_figure(row["orders_per_s"]),
            p50_ms=_figure(row["p50_ms"]),
            p95_ms=_figure(row["p95_ms"]),
            fairness=_share(row["client_min"], row["client_max"]),
            recovery_s=_figure(row.get("recovery_s")),
        )


def _locks(report: Mapping[str, Any]) -> Iterator[Measurement]:
    for kind in ("locks", "peers"):
        for name, row in report[kind].items():
            yield Measurement(
                name,
                rungs=_rungs("locks", name),
                peer=kind == "peers",
                per_s=1e6 / row["pair_us"] if row["pair_us"] else None,
                p50_ms=_figure(row["handoff_p50_ms"]),
                p95_ms=_figure(row["handoff_p95_ms"]),
                fairness=_share(row["greedy_min"], row["greedy_max"]),
                recovery_s=_figure(row.get("recovery_s")),
            )


ROWS: Mapping[Part, Callable[[Mapping[str, Any]], Iterable[Any]]] = {
    "strategies": _strategies,
    "locks": _locks,
    "segments": curves.segments,
    "contention": curves.contention,
    "retry-delay": curves.retry_delay,
}


def _rungs(part: Part, name: str) -> tuple[str, ...]:
    return tuple(slug for slug in RUNGS[part].get(name, (name,)) if slug in LADDER)


def _figure(value: Any) -> float | None:
    return None if value is None else float(value)


def _share(least: float, most: float) -> float:
    return least / most if most else 0.0
