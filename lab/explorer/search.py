"""The search: every schedule within bounds, those with fewest preemptions and events first."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from lab.explorer.scheduler import Run, Scheduler, SchedulingPoint
from lab.explorer.terms import Fault, Invariant
from lab.workloads.base import Trial

logger = logging.getLogger(__name__)

TRIES = 3
"""How often a schedule is begun anew when what was possible before is not: on a busy machine the servers' own clocks
may be late."""


class Diverged(RuntimeError):
    """The same choices did not lead to the same place."""


@dataclass(frozen=True)
class Bounds:
    """How far a search goes.

    Attributes:
        preemptions: how often somebody may be stopped who could go on.
        events: how many things may happen beside the steps of the clients.
        schedules: runs after which it gives up; None: none.
    """

    preemptions: int = 2
    events: int = 1
    schedules: int | None = None


@dataclass(frozen=True)
class Found:
    """What came of a search.

    Attributes:
        run: the first run, and so one of the shortest, that breaks the invariant; None: there is none.
        clients: how many took part.
        schedules: how many were run.
        exhausted: whether that was all of them. One that was found and could not be run again was not.
        seconds: how long it took.
        completed: all with so many preemptions and events together were tried; None: not even those with none.
        sampled: how many more were drawn at random, within the bounds.
    """

    run: Run | None
    clients: int
    schedules: int
    exhausted: bool
    seconds: float
    completed: int | None = None
    sampled: int = 0


def explore(
    trial: Trial,
    bounds: Bounds,
    events: Collection[Fault],
    goal: Invariant | None,
    progress: Callable[[int], object] = lambda schedules: None,
    confirm: Callable[[Run], bool] = lambda run: True,
) -> Found:
    """Run schedules until one breaks the invariant, or all within the bounds were tried.

    Each run follows a prefix and then goes on without interference; every other choice on its way becomes a prefix.
    Where the trace is equivalent to an earlier one that had as much left to spend, nothing new can follow.

    Args:
        trial: what is run.
        bounds: how far.
        events: what may happen.
        goal: the invariant; None: any.
        progress: told how many schedules were run so far.
        confirm: whether what was found is good enough; if not, the search goes on.
    """
    began = time.monotonic()
    ticket = count()
    prefixes: list[tuple[int, int, int, tuple[str, ...], int, int]] = [(0, 0, next(ticket), (), 0, 0)]
    seen: dict[int, list[tuple[int, int]]] = {}
    runs, clients, left_out = 0, len(trial.names), bounds.preemptions + bounds.events + 1
    while prefixes:
        if bounds.schedules is not None and runs >= bounds.schedules:
            left_out = min(left_out, prefixes[0][0])
            break
        cost, *_, prefix, preemptions, happened = heapq.heappop(prefixes)
        try:
            walk, run = _walk(trial, (prefix, preemptions, happened), bounds, seen, events, goal)
        except Diverged as error:
            # Where several wait for one row, Postgres may serve another of them first.
            logger.info("Left out: %s", error)
            left_out = min(left_out, cost)
            continue
        runs += 1
        progress(runs)
        if run.broken is not None and goal in (None, run.broken) and confirm(run):
            seconds = time.monotonic() - began
            return Found(run, clients, runs, exhausted=False, seconds=seconds)
        for other, spent, more in walk.others:
            heapq.heappush(prefixes, (spent + more, len(other), next(ticket), other, spent, more))
    return Found(
        None,
        clients,
        runs,
        exhausted=left_out > bounds.preemptions + bounds.events,
        seconds=time.monotonic() - began,
        completed=left_out - 1 if left_out else None,
    )


def _walk(
    trial: Trial,
    start: tuple[tuple[str, ...], int, int],
    bounds: Bounds,
    seen: dict[int, list[tuple[int, int]]],
    events: Collection[Fault],
    goal: Invariant | None,
) -> tuple[_Walk, Run]:
    for _ in range(TRIES):
        walk = _Walk(*start, bounds, seen, alike=trial.alike)
        with suppress(Diverged):
            return walk, Scheduler(trial, walk, events=events, goal=goal).play()
    raise Diverged(f"{trial.entry.slug}: {', '.join(start[0])} was possible once, and {TRIES} times it was not.")


class _Walk:
    """Chooses along a prefix, then as the scheduler would by itself, and notes what else could have been chosen."""

    def __init__(
        self,
        prefix: tuple[str, ...],
        preemptions: int,
        happened: int,
        bounds: Bounds,
        seen: dict[int, list[tuple[int, int]]],
        *,
        alike: bool,
    ) -> None:
        self.others: list[tuple[tuple[str, ...], int, int]] = []
        self._prefix = prefix
        self._spent = preemptions, happened
        self._bounds = bounds
        self._seen = seen
        self._alike = alike
        self._done: list[str] = []
        self._known = False

    def __call__(self, point: SchedulingPoint) -> str:
        at = len(self._done)
        if at < len(self._prefix):
            choice = self._prefix[at]
            if choice not in point.enabled and choice not in point.events():
                raise Diverged
        else:
            choice = point.enabled[0]
            if not self._known:
                self._look(point, choice)
        self._done.append(choice)
        return choice

    def _look(self, point: SchedulingPoint, choice: str) -> None:
        preemptions, happened = self._spent
        left = self._bounds.preemptions - preemptions, self._bounds.events - happened
        earlier = self._seen.setdefault(point.key, [])
        if any(more[0] >= left[0] and more[1] >= left[1] for more in earlier):
            self._known = True
            return
        earlier.append(left)
        goes_on = point.current in point.enabled
        quiet = point.current is not None and goes_on and point.pending[point.current].quiet
        so_far = tuple(self._done)
        if not quiet:
            # Clients who have done nothing yet are all alike: the first of them stands for the others.
            alike = sorted(point.fresh)[1:] if self._alike else []
            for name in point.enabled:
                if name in alike and choice not in alike:
                    continue
                cost = preemptions + (goes_on and name != point.current)
                if name != choice and cost <= self._bounds.preemptions:
                    self.others.append(((*so_far, name), cost, happened))
        if happened < self._bounds.events:
            for event in point.events():
                who = event.rpartition(" ")[2]
                if who in point.pending and point.pending[who].quiet:
                    continue
                self.others.append(((*so_far, event), preemptions, happened + 1))
