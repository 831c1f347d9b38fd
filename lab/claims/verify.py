"""Every rung's claim, checked by machine: the stored witness replayed, or all schedules within bounds tried."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing import active_children, get_context
from multiprocessing.connection import wait
from typing import Any

import redis
from django.conf import settings
from django.db import connections

from lab.claims import worker
from lab.claims.interrupts import not_interrupted
from lab.claims.runs import Impossible, rehearse, replay
from lab.claims.stress import control
from lab.claims.witness import Witness, load, store, store_trace, store_verdict
from lab.explorer.sample import sample
from lab.explorer.scheduler import Run
from lab.explorer.search import Bounds, Found, explore
from lab.explorer.terms import Fault
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox import pool
from lab.sandbox.sandbox import Sandbox
from lab.workloads.base import NAMES
from lab.workloads.registry import can_play, events_of, new_trial
from servers import ServerError, Servers

__all__ = ["check", "control", "deep", "in_processes", "reproduced", "search", "servers"]

REPLAYS = 20
"""How often a stored witness has to break its rung, out of as many times."""
SAMPLE = {"flawed": 1000, "sound": 30}
"""Schedules that are drawn at random on rungs whose servers are too slow to try them all."""
SOUND = Bounds(preemptions=2, events=1)
"""How far the sound rungs are searched each time, with two clients."""
CROWD = 3
CROWDED = {
    "locks": Bounds(preemptions=2, events=1, schedules=1000),
    "stock": Bounds(preemptions=1, events=1, schedules=500),
}
"""Clients and bounds of the other search of a sound rung: some flaws take a third client, who comes while two wait."""
NOT_IN_A_CROWD: tuple[Fault, ...] = ("tick",)
"""What happens to one holder and his lease, and takes no third client; the deep searches let it happen there too."""
UNORDERED = "file-lock"
"""Which of two threads that wait for one in their own process goes on is nobody's choice: it has no third client."""
DEEP = ((2, Bounds(preemptions=3, events=2)), (3, Bounds(preemptions=2, events=2)))
"""Clients and bounds of the deep searches of a sound rung."""
DEEP_SCHEDULES = 2000
"""How many schedules each of them tries at most, unless said otherwise."""
BEYOND = 4
"""Where a search gives up, one schedule is drawn at random for so many that were tried in order."""
SLOW = 20
"""Where servers are restarted, one schedule takes as long as so many elsewhere."""
EXTENT = ("schedules", "exhausted", "completed", "sampled", "clients", "preemptions", "events")
"""What a line says of how far was searched."""


def find(
    entry: LadderEntry,
    stage: Sandbox,
    bounds: Bounds,
    progress: Callable[[int], object],
    clients: int = 0,
    but: Collection[Fault] = (),
) -> Found:
    """Search for what breaks a rung: the invariant of a flawed one, any invariant of a sound one.

    What breaks a flawed one has to do so again and again: where several wait for one row, Postgres may serve another
    of them first.

    Args:
        clients: how many; 0: as many as it takes to show the rung.
        but: what does not happen, although it is tried on the rung.
    """

    def again(run: Run) -> bool:
        if entry.claim == "sound":
            return True
        witness = Witness(entry.slug, run.broken or "progress", len(trial.names), tuple(run.schedule), 0, 0)
        return breaks(witness, stage, REPLAYS) == REPLAYS

    trial = new_trial(entry, stage, clients or None)
    events = [event for event in events_of(entry) if event not in but]
    if can_play(entry):
        found = explore(trial, bounds, events, entry.breaks, progress, again)
        if found.run is not None or found.exhausted or bounds.schedules is None or found.schedules < bounds.schedules:
            return found
        size, done = max(1, bounds.schedules // BEYOND), found.schedules
        beyond = sample(trial, bounds, events, entry.breaks, size, progress=lambda n: progress(done + n), confirm=again)
        return replace(
            found,
            run=beyond.run,
            schedules=done + beyond.schedules,
            sampled=beyond.schedules,
            seconds=found.seconds + beyond.seconds,
        )
    size = SAMPLE[entry.claim] if bounds.schedules is None else max(1, bounds.schedules // SLOW)
    found = sample(trial, bounds, events, entry.breaks, size, progress=progress, confirm=again)
    if found.run is None:
        return found
    shorter = shortened(entry, found.run, found.clients, stage)
    return replace(found, run=shorter) if again(shorter) else found


def shortened(entry: LadderEntry, run: Run, clients: int, stage: Sandbox) -> Run:
    """The same break without what it does not take: a schedule that was drawn at random has more in it.

    Whoever comes first in it is A, if they do the same.
    """

    def tried(schedule: Iterable[str]) -> Run:
        try:
            return rehearse(Witness(entry.slug, run.broken or "progress", clients, tuple(schedule), 0, 0), stage)
        except Impossible:
            return Run()

    at = len(run.schedule)
    while at:
        at -= 1
        other = tried((*run.schedule[:at], *run.schedule[at + 1 :]))
        if other.broken == run.broken and _cost(other) < _cost(run):
            run, at = other, len(other.schedule)
    first = dict.fromkeys(re.findall(rf"\b[{NAMES}]\b", " ".join(run.schedule)))
    called = dict(zip(first, NAMES, strict=False))
    other = tried(re.sub(rf"\b[{NAMES}]\b", lambda name: called[name[0]], choice) for choice in run.schedule)
    return other if other.broken == run.broken and _cost(other) <= _cost(run) else run


def _cost(run: Run) -> tuple[int, int]:
    return run.preemptions + run.events, len(run.schedule)


def breaks(
    witness: Witness, stage: Sandbox, replays: int, progress: Callable[[int], object] = lambda done: None
) -> int:
    """How many of so many replays of a witness break its invariant."""
    broken = 0
    for done in range(1, replays + 1):
        with suppress(Impossible):
            broken += rehearse(witness, stage).broken == witness.invariant
        progress(done)
    return broken


def bounds_of(entry: LadderEntry) -> Bounds:
    """How far it takes to look for the witness of a flawed rung; how far a sound one is searched."""
    return SOUND if entry.claim == "sound" else Bounds(entry.preemptions, 1 if entry.broken_by else 0)


def witness_of(entry: LadderEntry, found: Found) -> Witness | None:
    """What a search has found, as it is stored."""
    if found.run is None or found.run.broken is None:
        return None
    run = found.run
    return Witness(entry.slug, found.run.broken, found.clients, tuple(run.schedule), run.preemptions, run.events)


def check(slug: str, stage: Sandbox, progress: Callable[[int], object] = lambda done: None) -> dict[str, Any]:
    """Whether a rung does what it claims.

    Returns:
        Its line of `manage.py ladder --verify --json`.
    """
    entry, began = LADDER[slug], time.monotonic()
    said: dict[str, Any] = {"rung": slug, "track": entry.track, "claim": entry.claim, "replays": 0, "broken": 0}
    if entry.claim == "flawed":
        witness, bounds = load(slug), bounds_of(entry)
        said |= {"clients": entry.clients, "preemptions": bounds.preemptions, "events": bounds.events}
        if witness is not None:
            said |= {"replays": REPLAYS, "broken": breaks(witness, stage, REPLAYS, progress)}
            said |= {"clients": witness.clients, "preemptions": witness.preemptions, "events": witness.events}
        broken = said["replays"] == said["broken"] > 0
        said |= {"schedules": said["replays"], "exhausted": False, "verdict": "broken" if broken else "held"}
    else:
        found = find(entry, stage, SOUND, progress)
        said |= _searched(found, SOUND)
        if found.run is None and _has_a_crowd(entry):
            crowd = find(entry, stage, CROWDED[entry.track], progress, CROWD, NOT_IN_A_CROWD)
            without = [event for event in NOT_IN_A_CROWD if event in entry.survives]
            said["also"] = [_searched(crowd, CROWDED[entry.track]) | {"without": without}]
            said |= {"verdict": said["also"][0]["verdict"], **_why(crowd)}
    return said | {"seconds": round(time.monotonic() - began, 2)}


def _has_a_crowd(entry: LadderEntry) -> bool:
    """Whether a third client comes: on servers of its own they would wait for a dead one by trying on and on."""
    return can_play(entry) and entry.slug != UNORDERED


def _searched(found: Found, bounds: Bounds) -> dict[str, Any]:
    return {
        "verdict": "held" if found.run is None else "broken",
        "clients": found.clients,
        "preemptions": bounds.preemptions,
        "events": bounds.events,
        "schedules": found.schedules,
        "exhausted": found.exhausted,
        "completed": found.completed,
        "sampled": found.sampled,
        "seconds": round(found.seconds, 1),
        **_why(found),
    }


def unchecked(slug: str, missing: str) -> dict[str, Any]:
    """The line of a rung that cannot be checked here. See `check`.

    Args:
        missing: what is not installed, and how to install it.
    """
    entry = LADDER[slug]
    bounds = bounds_of(entry)
    return {
        "rung": slug,
        "track": entry.track,
        "claim": entry.claim,
        "replays": 0,
        "broken": 0,
        "schedules": 0,
        "exhausted": False,
        "clients": entry.clients,
        "preemptions": bounds.preemptions,
        "events": bounds.events,
        "verdict": "missing",
        "missing": missing,
        "seconds": 0.0,
    }


def _why(found: Found) -> Mapping[str, str]:
    return {} if found.run is None else {"why": f"{found.run.why} ({', '.join(found.run.schedule)})"}


def search(slug: str, stage: Sandbox, progress: Callable[[int], object] = lambda done: None) -> dict[str, Any]:
    """Search for a flawed rung's witness as if none were known, and keep it; a sound one is checked. See `check`."""
    entry = LADDER[slug]
    if entry.claim == "flawed":
        witness = witness_of(entry, find(entry, stage, bounds_of(entry), progress))
        if witness is not None:
            store(witness)
    if not can_play(entry):
        schedule = witness.schedule if (witness := load(slug)) else ()
        store_trace(replay(slug, schedule, stage, to_the_end=True))
    return check(slug, stage, progress)


def deep(
    slug: str,
    stage: Sandbox,
    progress: Callable[[int], object] = lambda done: None,
    *,
    schedules: int = DEEP_SCHEDULES,
) -> dict[str, Any]:
    """Search a sound rung further than each time, in up to so many schedules a search. See `check`.

    Returns:
        Its line, with what was searched as `deep`.
    """
    entry, searches = LADDER[slug], []
    for clients, bounds in DEEP:
        if clients == CROWD and not _has_a_crowd(entry):
            continue
        found = find(entry, stage, replace(bounds, schedules=schedules), progress, clients)
        searches.append(_searched(found, bounds))
    broken = next((search for search in searches if search["verdict"] == "broken"), {})
    line = check(slug, stage, progress)
    return line | {name: broken[name] for name in ("verdict", "why") if name in broken} | {"deep": searches}


def keep(line: Mapping[str, Any]) -> None:
    """Keep how far a sound rung was searched, for the pages. What did not hold here leaves what is kept as it is."""
    if line["claim"] == "sound" and line["verdict"] == "held":
        names = ("verdict", *EXTENT, "also", "deep")
        store_verdict(LADDER[line["rung"]], {name: line[name] for name in names if name in line})


def reproduced(said: Mapping[str, Any]) -> bool:
    """Whether the verdict is what the rung claims, and was come to in all schedules where all can be tried."""
    whole = said["claim"] == "flawed" or said["exhausted"] or not can_play(LADDER[said["rung"]])
    return whole and bool(said["verdict"] == {"flawed": "broken", "sound": "held"}[said["claim"]])


@contextmanager
def servers() -> Iterator[None]:
    """The project's own servers, unless others are given; and nobody waits for their disk."""
    ours = {"postgres": settings.DATABASE_IS_OURS, "valkey": settings.REDIS_IS_OURS}
    with ExitStack() as running:
        if wanted := tuple(name for name, is_ours in ours.items() if is_ours):
            started = running.enter_context(Servers(settings.RUN_FOLDER, runs=wanted))
            running.callback(connections.close_all)
            if started.owned and settings.REDIS_IS_OURS:
                # Nobody else uses it while we run it, and what the schedules leave is worth nothing.
                redis.Redis.from_url(settings.REDIS_LOCATION).config_set("appendfsync", "no")
        yield


def in_processes(
    job: str, slugs: Sequence[str], processes: int, **options: Any
) -> Generator[dict[str, Any], None, None]:
    """Do a job (`check`, `search`, `deep`, `control`) on rungs, several at a time, each on a stage of its own.

    When it is closed early, or interrupted, the processes end, and what they are doing is not finished.

    Args:
        options: the job's own.

    Yields:
        Their lines, as they are done.

    Raises:
        ServerError: there are not so many stages, or a server does not answer, or a process was ended.
    """
    processes = max(1, min(processes, len(slugs)))
    with ExitStack() as tried:
        # All at once, so that they are there, with their databases, before anything begins.
        for _ in range(processes):
            tried.enter_context(pool.for_a_command())
    with ProcessPoolExecutor(processes, get_context("spawn"), worker.begin) as executor, _ended_with(executor):
        try:
            with not_interrupted():
                done = [executor.submit(worker.work, job, slug, **options) for slug in slugs]
            for each in as_completed(done):
                yield each.result()
        except BrokenProcessPool as error:
            raise ServerError("A process that checked rungs was ended by somebody else.") from error


@contextmanager
def _ended_with(pool: ProcessPoolExecutor) -> Iterator[None]:
    """When the block is left early, the pool's processes leave what they do and clear up, or are killed."""
    others = active_children()
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        workers = [child for child in active_children() if child not in others]
        for each in workers:
            each.terminate()
        until = time.monotonic() + worker.STOP_SECONDS
        for each in workers:
            if not wait([each.sentinel], max(0.0, until - time.monotonic())):
                each.kill()
        raise
