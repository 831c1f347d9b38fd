"""Every rung's claim, checked by machine: the stored witness replayed, or all schedules within bounds tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from typing import Any

import redis
from django.conf import settings
from django.db import connections

from lab.ladder.catalogue import LADDER, Entry
from lab.schedule import stages, worker
from lab.schedule.control import control
from lab.schedule.runs import events_of, new_trial, rehearse
from lab.schedule.search import Bounds, Found, explore
from lab.schedule.stage import Stage
from lab.schedule.witness import Witness, load, store, store_verdict
from servers import Servers

__all__ = ["check", "control", "deep", "in_processes", "reproduced", "search", "servers"]

REPLAYS = 20
"""How often a stored witness has to break its rung, out of as many times."""
SOUND = Bounds(preemptions=2, events=1)
"""How far the sound rungs are searched each time, with two clients."""
DEEP = ((2, Bounds(preemptions=3, events=2, schedules=20_000)), (3, Bounds(preemptions=2, events=2, schedules=20_000)))
"""Clients and bounds of the deep search of a sound rung."""


def find(entry: Entry, stage: Stage, bounds: Bounds, progress: Callable[[int], object], clients: int = 0) -> Found:
    """Search for what breaks a rung: the invariant of a flawed one, any invariant of a sound one."""
    trial = new_trial(entry, stage, clients or None)
    return explore(trial, bounds, events_of(entry), entry.breaks, progress)


def bounds_of(entry: Entry) -> Bounds:
    """How far it takes to look for the witness of a flawed rung; how far a sound one is searched."""
    return SOUND if entry.claim == "sound" else Bounds(entry.preemptions, 1 if entry.broken_by else 0)


def witness_of(entry: Entry, found: Found) -> Witness | None:
    """What a search has found, as it is stored."""
    if found.run is None or found.run.broken is None:
        return None
    return Witness(
        entry.slug, found.run.broken, found.clients, tuple(found.run.schedule), found.preemptions, found.events
    )


def check(slug: str, stage: Stage, progress: Callable[[int], object] = lambda done: None) -> dict[str, Any]:
    """Whether a rung does what it claims.

    Returns:
        Its line of `manage.py ladder --verify --json`.
    """
    entry, began = LADDER[slug], time.monotonic()
    said: dict[str, Any] = {"rung": slug, "track": entry.track, "claim": entry.claim, "replays": 0, "broken": 0}
    if entry.claim == "flawed":
        witness = load(slug)
        if witness is not None:
            for replay in range(REPLAYS):
                said["broken"] += rehearse(witness, stage).broken == witness.invariant
                progress(replay + 1)
            said |= {"clients": witness.clients, "preemptions": witness.preemptions, "events": witness.events}
        broken = witness is not None and said["broken"] == REPLAYS
        said |= {"replays": REPLAYS if witness else 0, "schedules": said["broken"], "exhausted": False}
        said["verdict"] = "broken" if broken else "held"
    else:
        found = find(entry, stage, SOUND, progress)
        said |= {"schedules": found.schedules, "exhausted": found.exhausted, "clients": found.clients}
        said |= {"preemptions": SOUND.preemptions, "events": SOUND.events}
        said["verdict"] = "held" if found.run is None else "broken"
        if found.run is not None:
            said["why"] = f"{found.run.why} ({', '.join(found.run.schedule)})"
    return said | {"seconds": round(time.monotonic() - began, 2)}


def search(slug: str, stage: Stage, progress: Callable[[int], object] = lambda done: None) -> dict[str, Any]:
    """Search for a flawed rung's witness as if none were known, and keep it. See `check`."""
    entry = LADDER[slug]
    witness = witness_of(entry, find(entry, stage, bounds_of(entry), progress))
    if witness is not None:
        store(witness)
    return check(slug, stage)


def deep(slug: str, stage: Stage, progress: Callable[[int], object] = lambda done: None) -> dict[str, Any]:
    """Search a sound rung further than each time, and keep how far. See `check`."""
    entry = LADDER[slug]
    tried = [(clients, bounds, find(entry, stage, bounds, progress, clients)) for clients, bounds in DEEP]
    held = all(found.run is None for _, _, found in tried)
    searches = [
        {
            "clients": clients,
            "preemptions": bounds.preemptions,
            "events": bounds.events,
            "schedules": found.schedules,
            "exhausted": found.exhausted,
            "seconds": round(found.seconds, 1),
        }
        for clients, bounds, found in tried
    ]
    store_verdict(entry, {"verdict": "held" if held else "broken", "searches": searches})
    return check(slug, stage)


def reproduced(said: Mapping[str, Any]) -> bool:
    """Whether the verdict is what the rung claims."""
    return bool(said["verdict"] == {"flawed": "broken", "sound": "held"}[said["claim"]])


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


def in_processes(job: str, slugs: Sequence[str], processes: int, **options: Any) -> Iterator[dict[str, Any]]:
    """Do a job (`check`, `search`, `deep`, `control`) on rungs, several at a time, each on a stage of its own.

    Args:
        options: the job's own.

    Yields:
        Their lines, as they are done.
    """
    context = get_context("spawn")
    numbers = context.Queue()
    for number in range(processes):
        stages.open_stage(number).close()
        numbers.put(number)
    with ProcessPoolExecutor(processes, context, worker.begin, (numbers,)) as pool:
        done = [pool.submit(worker.work, job, slug, **options) for slug in slugs]
        try:
            for each in as_completed(done):
                yield each.result()
        finally:
            pool.shutdown(cancel_futures=True)
