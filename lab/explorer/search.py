"""The search: run every schedule within bounds, in order of the number of preemptions and faults.

Most concurrency bugs need few preemptions, so schedules with few preemptions and faults are tried first. The first
schedule that breaks the code then has the fewest preemptions and faults in total.

Source: M. Musuvathi, S. Qadeer, "Iterative Context Bounding for Systematic Testing of Multithreaded Programs", PLDI
2007 (the tool CHESS).
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from lab.explorer.experiment import Experiment
from lab.explorer.run import Run, SchedulingPoint
from lab.explorer.scheduler import Scheduler
from lab.explorer.terms import Fault, Invariant

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a prefix is tried if one of its choices is not possible: on a busy machine, a server may be late."""


class Diverged(RuntimeError):
    """A repeated series of choices has led to a different state."""


@dataclass(frozen=True)
class Bounds:
    """How far a search goes.

    Attributes:
        preemptions: how often an actor may be stopped although it could go on.
        faults: maximum number of faults.
        schedules: number of runs after which the search ends. None for no limit.
    """

    preemptions: int = 2
    faults: int = 1
    schedules: int | None = None


@dataclass(frozen=True)
class Found:
    """The outcome of a search.

    Attributes:
        run: the first run that breaks the invariant. None if no run breaks it.
        clients: number of clients.
        schedules: number of schedules that were run.
        exhausted: whether every schedule within the bounds was run.
        seconds: duration of the search in seconds.
        completed: highest number n for which all schedules with up to n preemptions and faults in total were tried.
            None if a run breaks the invariant, or if not all schedules without preemptions and faults were tried.
        sampled: number of the schedules that were drawn at random.
    """

    run: Run | None
    clients: int
    schedules: int
    exhausted: bool
    seconds: float
    completed: int | None = None
    sampled: int = 0


@dataclass(frozen=True)
class _Prefix:
    """The first choices of a run, and the number of preemptions and faults among them."""

    choices: tuple[str, ...] = ()
    preemptions: int = 0
    faults: int = 0

    @property
    def cost(self) -> int:
        return self.preemptions + self.faults


def explore(
    experiment: Experiment,
    bounds: Bounds,
    faults: Collection[Fault],
    goal: Invariant | None,
    progress: Callable[[int], object] = lambda schedules: None,
    confirm: Callable[[Run], bool] = lambda run: True,
) -> Found:
    """Run schedules until one breaks the invariant, or until all within the bounds were tried.

    Each run follows a prefix, and then continues without preemptions or faults. There, every alternative within the
    bounds becomes a new prefix. The alternatives are skipped if an earlier run reached an equivalent trace with at
    least as many preemptions and faults still allowed.

    Args:
        experiment: the experiment to run.
        bounds: how far the search goes.
        faults: the faults that may happen.
        goal: the invariant to break; None for any invariant.
        progress: called with the number of schedules that were run so far.
        confirm: returns whether to accept a run that breaks the invariant. If not, the search continues.
    """
    began = time.monotonic()
    number = count()
    prefixes: list[tuple[int, int, int, _Prefix]] = [(0, 0, next(number), _Prefix())]
    seen: dict[int, list[tuple[int, int]]] = {}
    most = bounds.preemptions + bounds.faults
    runs, clients, left_out = 0, len(experiment.names), most + 1
    while prefixes:
        if bounds.schedules is not None and runs >= bounds.schedules:
            left_out = min(left_out, prefixes[0][0])
            break
        *_, prefix = heapq.heappop(prefixes)
        try:
            walk, run = _walk(experiment, prefix, bounds, seen, faults, goal)
        except Diverged as error:
            # If several clients wait for one row, Postgres may serve them in another order than before. Then the prefix
            # cannot be repeated.
            logger.info("Left out: %s", error)
            left_out = min(left_out, prefix.cost)
            continue
        runs += 1
        progress(runs)
        if run.broken is not None and goal in (None, run.broken) and confirm(run):
            return Found(run, clients, runs, exhausted=False, seconds=time.monotonic() - began)
        for other in walk.others:
            heapq.heappush(prefixes, (other.cost, len(other.choices), next(number), other))
    return Found(
        None,
        clients,
        runs,
        exhausted=left_out > most,
        seconds=time.monotonic() - began,
        completed=left_out - 1 if left_out else None,
    )


def _walk(
    experiment: Experiment,
    prefix: _Prefix,
    bounds: Bounds,
    seen: dict[int, list[tuple[int, int]]],
    faults: Collection[Fault],
    goal: Invariant | None,
) -> tuple[_Walk, Run]:
    alike = frozenset(experiment.names if experiment.interchangeable else ())
    for _ in range(ATTEMPTS):
        walk = _Walk(prefix, bounds, seen, alike)
        with suppress(Diverged):
            return walk, Scheduler(experiment, walk, faults=faults, goal=goal).play()
    choices = ", ".join(prefix.choices)
    raise Diverged(f"{experiment.name}: {choices} was possible once, but not in {ATTEMPTS} more attempts.")


class _Walk:
    """A chooser that follows a prefix, then continues without preemptions or faults, and notes the alternatives."""

    def __init__(
        self, prefix: _Prefix, bounds: Bounds, seen: dict[int, list[tuple[int, int]]], alike: frozenset[str]
    ) -> None:
        self.others: list[_Prefix] = []
        self._prefix = prefix
        self._bounds = bounds
        self._seen = seen
        self._alike = alike
        self._done: list[str] = []
        self._known = False

    def __call__(self, point: SchedulingPoint) -> str:
        at = len(self._done)
        if at < len(self._prefix.choices):
            choice = self._prefix.choices[at]
            if choice not in point.enabled and choice not in point.faults():
                raise Diverged
        else:
            choice = point.enabled[0]
            if not self._known:
                self._note_alternatives(point, choice)
        self._done.append(choice)
        return choice

    def _note_alternatives(self, point: SchedulingPoint, choice: str) -> None:
        preemptions, faults = self._prefix.preemptions, self._prefix.faults
        left = self._bounds.preemptions - preemptions, self._bounds.faults - faults
        earlier = self._seen.setdefault(point.key, [])
        if any(more[0] >= left[0] and more[1] >= left[1] for more in earlier):
            self._known = True
            return
        earlier.append(left)
        goes_on = point.current in point.enabled
        quiet = point.current is not None and goes_on and point.pending[point.current].quiet
        so_far = tuple(self._done)
        if not quiet:
            # If several clients with the same job have taken no step yet, try only the first of them: the others would
            # do the same. This does not cover a queue's worker, which has another job.
            alike = sorted(point.fresh & self._alike)[1:]
            for name in point.enabled:
                if name in alike and choice not in alike:
                    continue
                cost = preemptions + (goes_on and name != point.current)
                if name != choice and cost <= self._bounds.preemptions:
                    self.others.append(_Prefix((*so_far, name), cost, faults))
        if faults < self._bounds.faults:
            for fault in point.faults():
                actor = fault.rpartition(" ")[2]
                if actor in point.pending and point.pending[actor].quiet:
                    continue
                self.others.append(_Prefix((*so_far, fault), preemptions, faults + 1))
