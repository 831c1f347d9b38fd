"""A minimal stored comparison, and functions that render the pages that show it."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from django.test import Client

from lab.claims import comparisons, staleness
from lab.claims.definitions import ROOMS, ROOT

MACHINE = {"cpus": 2, "processor": "x86_64", "python": "3.11.7"}


def strategy(per_s: float, recovery_s: float | None) -> dict[str, Any]:
    made = {"orders_per_s": per_s, "p50_ms": 1000 / per_s, "p95_ms": 3000 / per_s, "client_min": 30, "client_max": 40}
    return made | ({} if recovery_s is None else {"recovery_s": recovery_s})


def lock(pair_us: float, handoff: float, greedy: tuple[int, int], recovery_s: float | None) -> dict[str, Any]:
    return {
        "pair_us": pair_us,
        "handoff_p50_ms": handoff,
        "handoff_p95_ms": 2 * handoff,
        "greedy_min": greedy[0],
        "greedy_max": greedy[1],
        "recovery_s": recovery_s,
    }


def segmented(segments: int, held_all: int, *cells: tuple[float, float]) -> dict[str, Any]:
    """Return a row of the segments report. Each cell is a pair: orders per second, and busy share of the processors."""
    work = [
        {"work_ms": work_ms, "orders_per_s": per_s, "least": per_s, "most": per_s, "cpu": cpu}
        for work_ms, (per_s, cpu) in zip((0.0, 20.0), cells, strict=True)
    ]
    return {"segments": segments, "held_all": held_all, "work": work}


def contended(per_s: float, p50_ms: float, failed: float = 0.0, try_again: float = 0.0) -> dict[str, Any]:
    return {
        "orders_per_s": per_s,
        "least": per_s,
        "most": per_s,
        "p50_ms": p50_ms,
        "p95_ms": 3 * p50_ms,
        "failed_per_order": failed,
        "try_again": try_again,
    }


def handed_over(name: str, delay_ms: float | None, p50_ms: float, commands_per_s: float) -> dict[str, Any]:
    return {
        "lock": name,
        "retry_delay_ms": delay_ms,
        "handoff_p50_ms": p50_ms,
        "handoff_p99_ms": 2 * p50_ms,
        "idle_commands_per_s": commands_per_s,
    }


def measured(source: str, report: dict[str, Any]) -> dict[str, Any]:
    return {"made": "2026-01-31", "short": False, "source": source, "machine": MACHINE, "report": report}


REPORTS: dict[str, dict[str, Any]] = {
    "strategies": {
        "empty": {"requests_per_s": 2000.4},
        "peer:redis-py-lock": strategy(100.0, None),
        "strategies": {"redis-lock": strategy(250.0, 3.01), "guarded-update": strategy(1250.5, 0.02)},
    },
    "locks": {
        "locks": {"redis": lock(250.0, 0.6, (31, 33), 9.9), "thread": lock(20.0, 0.1, (10, 10), None)},
        "peers": {"redis-py": lock(500.0, 51.0, (0, 99), 10.0)},
    },
    "segments": {
        "machine": {**MACHINE, "clients": 64, "rounds": 3, "seconds": 2.0, "stock": 100, "quantity": 3},
        "segments": [
            segmented(1, 0, (200.0, 0.75), (40.0, 0.2)),
            segmented(2, 1, (320.0, 0.95), (80.0, 0.3)),
            segmented(5, 3, (340.0, 1.0), (190.0, 0.6)),
        ],
    },
    "contention": {
        "machine": {**MACHINE, "attempts": 20, "rounds": 3, "seconds": 2.0},
        "clients": [
            {"clients": 1, "optimistic": contended(300.0, 3.0), "row-lock": contended(310.0, 3.1)},
            {"clients": 16, "optimistic": contended(200.0, 70.0, 2.5), "row-lock": contended(400.0, 40.0)},
            {"clients": 256, "optimistic": contended(80.0, 7000, 12, 0.05), "row-lock": contended(350.0, 700)},
        ],
    },
    "retry-delay": {
        "machine": {"cpus": 2, "nodes": 5, "rounds": 2, "handoffs": 20},
        "locks": [
            handed_over("redlock", 5.0, 4.0, 500.0),
            handed_over("redlock", 10.0, 5.0, 310.0),
            handed_over("redlock", 100.0, 60.0, 50.0),
            handed_over("redis", None, 0.6, 0.0),
            handed_over("zookeeper", None, 4.6, 0.5),
        ],
    },
}


def stored() -> dict[str, Any]:
    """Return a new copy of a comparison. Part names stand for code hashes: see the fixture `unhashed`."""
    return copy.deepcopy({part: measured(part, report) for part, report in REPORTS.items()})


def store(file: Path, *keys: str, value: Any = None) -> None:
    """Write the comparison file. If `keys` are given, set the value at that path to `value`."""
    changed = inner = stored()
    for key in keys[:-1]:
        inner = inner[key]
    if keys:
        inner[keys[-1]] = value
    file.write_text(json.dumps(changed))


def left_out(part: comparisons.Part, called: Iterable[str], *, least: int) -> list[Path]:
    """Return the called files of the project that the hash of a part does not cover."""
    files = {path.relative_to(ROOT) for path in map(Path, called) if path.is_relative_to(ROOT)}
    ours = {file for file in files if file.parts[0] in ROOMS}
    assert len(ours) >= least
    return [file for file in ours if not any(file.is_relative_to(place) for place in staleness.MEASURED[part])]


@contextmanager
def calls(profiler: ModuleType) -> Iterator[set[str]]:
    """Return a set that gets the file of each called function: in this thread, or with `threading` in later ones."""
    called: set[str] = set()
    profiler.setprofile(lambda frame, event, _: called.add(frame.f_code.co_filename))
    try:
        yield called
    finally:
        profiler.setprofile(None)


def page(address: str, language: str = "en") -> str:
    """Return a page with its HTML entities resolved. Render it again only if the comparison file has changed."""
    file = comparisons.FILE
    return _page(address, language, file.read_text() if file.exists() else None)


@cache
def _page(address: str, language: str, content: str | None) -> str:
    response = Client(headers={"Accept-Language": language}).get(address)
    assert response.status_code == 200
    return html.unescape(response.content.decode())
