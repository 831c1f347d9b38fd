"""A random sample of schedules, for rungs whose servers are too slow to try them all."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

from lab.ladder.locks.rung import Event, Invariant
from lab.schedule.controller import Controller, Point, Run
from lab.schedule.search import Bounds, Found
from lab.schedule.trial import Trial

SHORTEST = 4
"""Steps of a run at least, when nothing is known of it yet."""


def sample(
    trial: Trial,
    bounds: Bounds,
    events: Collection[Event],
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
        run = Controller(trial, _Walk(draws, longest, bounds), events=events, goal=goal).play()
        progress(runs)
        longest = max(longest, len(run.schedule))
        if run.broken is not None and goal in (None, run.broken) and confirm(run):
            seconds = time.monotonic() - began
            return Found(run, clients, bounds.preemptions, bounds.events, runs, exhausted=False, seconds=seconds)
    return Found(None, clients, 0, 0, size, exhausted=False, seconds=time.monotonic() - began)


class _Walk:
    """Goes on with whoever goes on, but for some places."""

    def __init__(self, draws: random.Random, length: int, bounds: Bounds) -> None:
        self._draws = draws
        self._switches = set(draws.choices(range(length), k=bounds.preemptions))
        self._events = set(draws.choices(range(length), k=bounds.events))
        self._done = -1

    def __call__(self, point: Point) -> str:
        self._done += 1
        if self._done in self._events and (offered := point.events()):
            return self._draws.choice(offered)
        others = [name for name in point.enabled if name != point.current]
        if others and (self._done in self._switches or point.current not in point.enabled):
            return self._draws.choice(others)
        return point.enabled[0]
