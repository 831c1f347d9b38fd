"""The search: every schedule within bounds, those with fewest preemptions and events first."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count

from lab.ladder.locks.rung import Event, Invariant
from lab.schedule.controller import Controller, Point, Run
from lab.schedule.trial import Trial


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
        witness: the first, and so a shortest, schedule that breaks the invariant; None: there is none.
        run: the run of the witness.
        schedules: how many were run.
        exhausted: whether that was all of them.
        seconds: how long it took.
    """

    witness: tuple[str, ...] | None
    run: Run | None
    schedules: int
    exhausted: bool
    seconds: float


def explore(
    trial: Trial,
    bounds: Bounds,
    events: Collection[Event],
    goal: Invariant | None,
    progress: Callable[[int], object] = lambda schedules: None,
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
    """
    began = time.monotonic()
    ticket = count()
    prefixes: list[tuple[int, int, int, tuple[str, ...], int, int]] = [(0, 0, next(ticket), (), 0, 0)]
    seen: dict[int, list[tuple[int, int]]] = {}
    runs = 0
    while prefixes:
        if bounds.schedules is not None and runs >= bounds.schedules:
            return Found(None, None, runs, exhausted=False, seconds=time.monotonic() - began)
        *_, prefix, preemptions, happened = heapq.heappop(prefixes)
        walk = _Walk(prefix, preemptions, happened, bounds, seen, alike=trial.alike)
        run = Controller(trial, walk, events=events, goal=goal).play()
        runs += 1
        progress(runs)
        if run.broken is not None and goal in (None, run.broken):
            return Found(tuple(run.schedule), run, runs, exhausted=False, seconds=time.monotonic() - began)
        for other, spent, more in walk.others:
            heapq.heappush(prefixes, (spent + more, len(other), next(ticket), other, spent, more))
    return Found(None, None, runs, exhausted=True, seconds=time.monotonic() - began)


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

    def __call__(self, point: Point) -> str:
        at = len(self._done)
        if at < len(self._prefix):
            choice = self._prefix[at]
        else:
            choice = point.enabled[0]
            if not self._known:
                self._look(point, choice)
        self._done.append(choice)
        return choice

    def _look(self, point: Point, choice: str) -> None:
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
                who = event.removeprefix("crash ")
                if who in point.pending and point.pending[who].quiet:
                    continue
                self.others.append(((*so_far, event), preemptions, happened + 1))
