"""A random sample of schedules, where there are too many to try them all.

They are drawn as PCT draws them: each actor has a random priority, the highest of those who can goes on, and at so many
random places whoever would go on gets the lowest. A flaw that takes d ordered places among n actors and k steps is met
by each draw with a probability of 1 / (n * k ** (d - 1)) at least.

Source: S. Burckhardt, P. Kothari, M. Musuvathi, S. Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees
of Finding Bugs", ASPLOS 2010.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

from lab.explorer.scheduler import Run, Scheduler, SchedulingPoint
from lab.explorer.search import Bounds, Found
from lab.explorer.terms import Fault, Invariant
from lab.workloads.base import Trial

LATE = 0.5
"""How often whoever went last is late when something happens: then the others go on before him."""
SHORTEST = 4
"""Steps of a run at least, when nothing is known of it yet."""


def sample(
    trial: Trial,
    bounds: Bounds,
    events: Collection[Fault],
    goal: Invariant | None,
    size: int,
    *,
    seed: int = 0,
    progress: Callable[[int], object] = lambda schedules: None,
    confirm: Callable[[Run], bool] = lambda run: True,
) -> Found:
    """Run so many schedules that are drawn at random, or until one breaks the invariant.

    Each has up to the bounds' preemptions and events, at places drawn from the length of the longest run so far.

    Args:
        trial: what is run.
        bounds: how much may come between the clients' steps.
        events: what may happen.
        goal: the invariant; None: any.
        size: how many.
        seed: where the random numbers begin; the same one gives the same schedules.
        progress: told how many schedules were run so far.
        confirm: whether what was found is good enough; if not, the sample goes on.
    """
    began = time.monotonic()
    draws = random.Random(seed)  # noqa: S311 - no secret
    longest, clients = SHORTEST, len(trial.names)
    for runs in range(1, size + 1):
        run = Scheduler(trial, _Walk(draws, longest, bounds), events=events, goal=goal).play()
        progress(runs)
        longest = max(longest, len(run.schedule))
        if run.broken is not None and goal in (None, run.broken) and confirm(run):
            seconds = time.monotonic() - began
            return Found(run, clients, runs, exhausted=False, seconds=seconds, sampled=runs)
    return Found(None, clients, size, exhausted=False, seconds=time.monotonic() - began, sampled=size)


class _Walk:
    """Goes on with whoever has the highest priority, but for some places."""

    def __init__(self, draws: random.Random, length: int, bounds: Bounds) -> None:
        self._draws = draws
        self._changes = set(draws.choices(range(length), k=bounds.preemptions))
        self._events = set(draws.choices(range(length), k=bounds.events))
        self._priorities: dict[str, float] = {}
        self._done = -1

    def __call__(self, point: SchedulingPoint) -> str:
        self._done += 1
        if self._done in self._events and (offered := point.events()):
            if point.current is not None and self._draws.random() < LATE:
                self._priorities[point.current] = -self._draws.random()
            return self._draws.choice(offered)
        for name in point.enabled:
            self._priorities.setdefault(name, self._draws.random())
        first = max(point.enabled, key=self._priorities.__getitem__)
        if self._done in self._changes:
            self._priorities[first] = -self._draws.random()  # below whoever was not set back
            first = max(point.enabled, key=self._priorities.__getitem__)
        return first
