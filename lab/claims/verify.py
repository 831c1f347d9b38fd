"""Check the claim of a rung (a lock or a way of selling): replay a flawed rung's witness, or search a sound rung."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lab.claims.finding import REPLAYS, Progress, breaks, find, no_progress, witness_of
from lab.claims.runs import replay
from lab.claims.witness import load, store, store_trace, store_verdict
from lab.explorer.search import Bounds, Found
from lab.explorer.terms import Fault
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import can_play

SOUND = Bounds(preemptions=2, faults=1)
"""Bounds of the first search of a sound rung, with two clients."""
CROWD = 3
CROWDED = {
    "locks": Bounds(preemptions=2, faults=1, schedules=1000),
    "stock": Bounds(preemptions=1, faults=1, schedules=500),
}
"""Bounds of a second search of a sound rung, with `CROWD` clients. Some flaws need a holder and two waiters."""
NOT_IN_A_CROWD: tuple[Fault, ...] = ("tick",)
"""Faults of one holder and its lease, which need no third client. Only deep searches try them with three clients."""
UNORDERED = "file-lock"
"""Slug of a lock whose runs with three clients are not repeatable: the system decides which thread gets the lock."""
DEEP = ((2, Bounds(preemptions=3, faults=2)), (3, Bounds(preemptions=2, faults=2)))
"""Clients and bounds of the deep searches of a sound rung, which take longer than `check`."""
DEEP_SCHEDULES = 2000
"""Maximum number of schedules of each deep search, by default."""
EXTENT = ("schedules", "exhausted", "completed", "sampled", "clients", "preemptions", "faults")
"""Names of the values in a result line that tell the extent of the search."""


def bounds_of(entry: LadderEntry) -> Bounds:
    """Return the bounds of a search: those that the witness of a flawed rung needs; `SOUND` for a sound rung."""
    return SOUND if entry.claim == "sound" else Bounds(entry.preemptions, 1 if entry.broken_by else 0)


def check(slug: str, sandbox: Sandbox, progress: Progress = no_progress) -> dict[str, Any]:
    """Check whether a rung's claim is true.

    Returns:
        The rung's line of `manage.py ladder --verify --json`.
    """
    entry, began = LADDER[slug], time.monotonic()
    line = _line(entry)
    if entry.claim == "flawed":
        witness = load(slug)
        if witness is not None:
            line |= {"replays": REPLAYS, "broken": breaks(entry, witness, sandbox, REPLAYS, progress)}
            line |= {"clients": witness.clients, "preemptions": witness.preemptions, "faults": witness.faults}
        broken = line["replays"] == line["broken"] > 0
        line |= {"schedules": line["replays"], "exhausted": False, "verdict": "broken" if broken else "held"}
    else:
        found = find(entry, sandbox, SOUND, progress)
        line |= _outcome(found, SOUND)
        if found.run is None and _has_a_crowd(entry):
            crowd = find(entry, sandbox, CROWDED[entry.track], progress, CROWD, NOT_IN_A_CROWD)
            without = [fault for fault in NOT_IN_A_CROWD if fault in entry.survives]
            line["also"] = [_outcome(crowd, CROWDED[entry.track]) | {"without": without}]
            line |= {"verdict": line["also"][0]["verdict"], **_why(crowd)}
    return line | {"seconds": round(time.monotonic() - began, 2)}


def search(slug: str, sandbox: Sandbox, progress: Progress = no_progress) -> dict[str, Any]:
    """Search again for the witness of a flawed rung, and store it. A sound rung is only checked.

    Returns:
        The result line, as from `check`.
    """
    entry = LADDER[slug]
    if entry.claim == "flawed":
        witness = witness_of(entry, find(entry, sandbox, bounds_of(entry), progress))
        if witness is not None:
            store(witness)
    return remeasure(slug, sandbox, progress)


def remeasure(slug: str, sandbox: Sandbox, progress: Progress = no_progress) -> dict[str, Any]:
    """Check a rung. If its page cannot replay it, also store the trace that the page shows.

    Returns:
        The result line, as from `check`.
    """
    if not can_play(LADDER[slug]):
        schedule = witness.schedule if (witness := load(slug)) else ()
        store_trace(replay(slug, schedule, sandbox, to_the_end=True))
    return check(slug, sandbox, progress)


def deep(
    slug: str, sandbox: Sandbox, progress: Progress = no_progress, *, schedules: int = DEEP_SCHEDULES
) -> dict[str, Any]:
    """Search a sound rung within wider bounds.

    Args:
        schedules: maximum number of schedules of each search.

    Returns:
        The result line, as from `check`. Its `deep` lists these searches.
    """
    entry, searches = LADDER[slug], []
    for clients, bounds in DEEP:
        if clients == CROWD and not _has_a_crowd(entry):
            continue
        found = find(entry, sandbox, replace(bounds, schedules=schedules), progress, clients)
        searches.append(_outcome(found, bounds))
    broken = next((search for search in searches if search["verdict"] == "broken"), {})
    line = check(slug, sandbox, progress)
    return line | {name: broken[name] for name in ("verdict", "why") if name in broken} | {"deep": searches}


def unchecked(slug: str, missing: str) -> dict[str, Any]:
    """Return the result line of a rung that cannot be checked on this machine.

    Args:
        missing: the name of the missing server or library, and how to install it.
    """
    line = {"schedules": 0, "exhausted": False, "verdict": "missing", "missing": missing, "seconds": 0.0}
    return _line(LADDER[slug]) | line


def keep(line: Mapping[str, Any]) -> None:
    """Store how a rung's claim was checked, for the pages. Store nothing if the claim was not confirmed."""
    if reproduced(line):
        names = ("verdict", "replays", "broken", *EXTENT, "also", "deep")
        store_verdict(LADDER[line["rung"]], {name: line[name] for name in names if name in line})


def reproduced(line: Mapping[str, Any]) -> bool:
    """Return whether the verdict confirms the rung's claim.

    For a sound rung, the search with two clients must also have tried all schedules within its bounds. This is not
    demanded if the rung needs its own servers, because then only a sample of the schedules can run.
    """
    complete = line["claim"] == "flawed" or line["exhausted"] or not can_play(LADDER[line["rung"]])
    return complete and bool(line["verdict"] == {"flawed": "broken", "sound": "held"}[line["claim"]])


def _line(entry: LadderEntry) -> dict[str, Any]:
    bounds = bounds_of(entry)
    return {
        "rung": entry.slug,
        "track": entry.track,
        "claim": entry.claim,
        "replays": 0,
        "broken": 0,
        "clients": entry.clients,
        "preemptions": bounds.preemptions,
        "faults": bounds.faults,
    }


def _has_a_crowd(entry: LadderEntry) -> bool:
    """Return whether to try a third client on a rung.

    False for `UNORDERED`. False for a rung with its own servers, where two of three clients could retry for ever.
    """
    return can_play(entry) and entry.slug != UNORDERED


def _outcome(found: Found, bounds: Bounds) -> dict[str, Any]:
    return {
        "verdict": "held" if found.run is None else "broken",
        "clients": found.clients,
        "preemptions": bounds.preemptions,
        "faults": bounds.faults,
        "schedules": found.schedules,
        "exhausted": found.exhausted,
        "completed": found.completed,
        "sampled": found.sampled,
        "seconds": round(found.seconds, 1),
        **_why(found),
    }


def _why(found: Found) -> Mapping[str, str]:
    return {} if found.run is None else {"why": f"{found.run.why} ({', '.join(found.run.schedule)})"}
