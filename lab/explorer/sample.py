"""A random sample of schedules, for experiments with too many schedules to try them all.

The schedules are drawn with PCT (probabilistic concurrency testing). Each actor has a random priority, and the enabled
actor with the highest priority takes the next step. At a few random steps, the actor whose turn it is gets a priority
below all initial ones. If a bug needs d ordered steps among n actors and k steps, each draw finds it with a probability
of at least 1 / (n * k ** (d - 1)).

Source: S. Burckhardt, P. Kothari, M. Musuvathi, S. Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees
of Finding Bugs", ASPLOS 2010.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

from lab.explorer.experiment import Experiment
from lab.explorer.run import Run, SchedulingPoint
from lab.explorer.scheduler import Scheduler
from lab.explorer.search import Bounds, Found
from lab.explorer.terms import Fault, Invariant

LATE = 0.5
"""Probability that a fault also gives the actor of the last step a low priority. Then other actors go first."""
SHORTEST = 4
"""The assumed length of a schedule in steps, until the first run shows the real length."""


def sample(
    experiment: Experiment,
    bounds: Bounds,
    faults: Collection[Fault],
    goal: Invariant | None,
    size: int,
    *,
    seed: int = 0,
    progress: Callable[[int], object] = lambda schedules: None,
    confirm: Callable[[Run], bool] = lambda run: True,
) -> Found:
    """Run schedules that are drawn at random, until one breaks the invariant.

    In each schedule, at most `bounds.preemptions` priorities change, and at most `bounds.faults` faults happen. A fault
    may change one more priority. Each change and each fault comes before a random step. The number of this step is at
    most the length of the longest run so far.

    Args:
        experiment: the experiment to run.
        bounds: maximum number of priority changes (`preemptions`) and of faults.
        faults: the faults that may happen.
        goal: the invariant to break; None for any invariant.
        size: maximum number of schedules to run.
        seed: seed of the random numbers. The same seed gives the same schedules.
        progress: called with the number of schedules that were run so far.
        confirm: returns whether to accept a run that breaks the invariant. If not, the sample continues.
    """
    began = time.monotonic()
    draws = random.Random(seed)  # noqa: S311 - no secret
    longest, clients = SHORTEST, len(experiment.names)
    for runs in range(1, size + 1):
        run = Scheduler(experiment, _Walk(draws, longest, bounds), faults=faults, goal=goal).play()
        progress(runs)
        longest = max(longest, len(run.schedule))
        if run.broken is not None and goal in (None, run.broken) and confirm(run):
            seconds = time.monotonic() - began
            return Found(run, clients, runs, exhausted=False, seconds=seconds, sampled=runs)
    return Found(None, clients, size, exhausted=False, seconds=time.monotonic() - began, sampled=size)


class _Walk:
    """A chooser that picks the actor with the highest priority, and changes priorities at random steps."""

    def __init__(self, draws: random.Random, length: int, bounds: Bounds) -> None:
        self._draws = draws
        self._changes = set(draws.choices(range(length), k=bounds.preemptions))
        self._faults = set(draws.choices(range(length), k=bounds.faults))
        self._priorities: dict[str, float] = {}
        self._done = -1

    def __call__(self, point: SchedulingPoint) -> str:
        self._done += 1
        if self._done in self._faults and (offered := point.faults()):
            if point.current is not None and self._draws.random() < LATE:
                self._priorities[point.current] = -self._draws.random()
            return self._draws.choice(offered)
        for name in point.enabled:
            self._priorities.setdefault(name, self._draws.random())
        first = max(point.enabled, key=self._priorities.__getitem__)
        if self._done in self._changes:
            # A changed priority is negative, so it is lower than every priority that was not changed.
            self._priorities[first] = -self._draws.random()
            first = max(point.enabled, key=self._priorities.__getitem__)
        return first
