"""What the pages and the commands ask for: replay a schedule, search for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.ladder.catalogue import LADDER, Entry
from lab.ladder.locks.rung import Event
from lab.schedule import fence_trial, fleet_trial, line_trial, lock_trial, postgres_trial, process_trial, stock_trial
from lab.schedule.controller import STOP, Controller, Point, Run
from lab.schedule.stage import Stage
from lab.schedule.trace import Trace
from lab.schedule.trial import NAMES, Trial
from lab.schedule.witness import Witness

LOCK_TRIALS: dict[str, type[lock_trial.LockTrial]] = {
    "busy-as-success": lock_trial.SellTrial,
    "merge-without-a-lock": lock_trial.MergeTrial,
    "fence-on-write-only": lock_trial.FenceTrial,
    "fence": fence_trial.LeapTrial,
    "re-entrant-without-the-count": lock_trial.TwiceTrial,
    "re-entrant": lock_trial.TwiceTrial,
    "for-update-without-the-row": postgres_trial.PostgresTrial,
    "lock-table-for-update": postgres_trial.PostgresTrial,
    "insert-without-owner-and-expiry": postgres_trial.PostgresTrial,
    "lock-table-insert": postgres_trial.PostgresTrial,
    "postgres-advisory-lock": postgres_trial.PostgresTrial,
    "one-primary-with-replicas": fleet_trial.PrimaryTrial,
    "redlock": fleet_trial.RedlockTrial,
    "redlock-no-fsync": fleet_trial.RedlockTrial,
    "redlock-replicated-nodes": fleet_trial.RedlockTrial,
    "redlock-clock-jump": fleet_trial.RedlockTrial,
    "woken-means-mine": line_trial.ZooKeeperTrial,
    "watch-set-too-late": line_trial.ZooKeeperTrial,
    "zookeeper": line_trial.ZooKeeperTrial,
    "kazoo-recipe": line_trial.ZooKeeperTrial,
    "etcd": line_trial.EtcdTrial,
    "thread-lock": process_trial.MemoryTrial,
    "process-lock": process_trial.MachinesTrial,
    "owner-is-thread-id": process_trial.ProcessTrial,
}


ON_SERVERS = (fleet_trial.FleetTrial, line_trial.LineTrial)
"""Trials that need servers of their own. A random sample of their schedules is tried, and nobody chooses there."""


OTHERS: dict[type[Trial], str] = {stock_trial.QueueTrial: "W", fleet_trial.RedlockTrial: fleet_trial.MINORITY}
"""Whoever takes steps in a trial beside its clients."""


class Impossible(Exception):
    """A schedule chooses what cannot be chosen.

    Attributes:
        at: the place of the choice in the schedule, from 0.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message, at)
        self.at = at

    def __str__(self) -> str:
        return str(self.args[0])


def new_trial(entry: Entry, stage: Stage, clients: int | None = None) -> Trial:
    """What is tried on a rung.

    Args:
        clients: how many; None: as many as it takes to show the rung.
    """
    return _kind(entry)(entry, stage, clients or entry.clients)


def actors(entry: Entry, clients: int) -> tuple[str, ...]:
    """Who takes steps on a rung, by the names that stand in a schedule: so many clients, and whoever works for them."""
    return (*NAMES[:clients], *OTHERS.get(_kind(entry), ""))


def _kind(entry: Entry) -> type[Trial]:
    if entry.track == "locks":
        return LOCK_TRIALS.get(entry.slug, lock_trial.LockTrial)
    if entry.claim == "flawed":
        return stock_trial.RungTrial
    return stock_trial.QueueTrial if entry.slug == "lua-queue" else stock_trial.StrategyTrial


def can_play(entry: Entry) -> bool:
    """Whether the rung's schedules run on a stage, so that a visitor may choose who goes next."""
    return not issubclass(LOCK_TRIALS.get(entry.slug, lock_trial.LockTrial), ON_SERVERS)


def events_of(entry: Entry) -> tuple[Event, ...]:
    """What is tried on a rung: what breaks a flawed one, or all that a sound one claims to survive."""
    if entry.claim == "sound":
        return tuple(sorted(entry.survives))
    return (entry.broken_by,) if entry.broken_by else ()


def rehearse(witness: Witness, stage: Stage) -> Run:
    """Replay a stored witness to its end, without a look at what the servers keep.

    Raises:
        Impossible: the rung does not do any more what it did when the witness was found.
    """
    entry, todo = LADDER[witness.rung], list(witness.schedule)

    def choose(point: Point) -> str:
        if not todo:
            return point.enabled[0]
        if todo[0] not in point.enabled and todo[0] not in point.events():
            at = len(witness.schedule) - len(todo)
            raise Impossible(f"{witness.rung}: {todo[0]!r} cannot come next in the stored witness.", at)
        return todo.pop(0)

    trial = new_trial(entry, stage, witness.clients)
    return Controller(trial, choose, events=events_of(entry), goal=entry.breaks).play()


def replay(
    slug: str,
    schedule: Sequence[str],
    stage: Stage,
    *,
    clients: int | None = None,
    events: Sequence[Event] | None = None,
    to_the_end: bool = False,
    as_far_as_possible: bool = False,
    seconds: float = math.inf,
) -> Trace:
    """Run a schedule on a rung and note every step.

    Args:
        slug: the rung.
        schedule: who goes next, or what happens, in order.
        stage: where.
        clients: how many; None: as many as it takes to show the rung.
        events: what may happen; None: what is tried on the rung.
        to_the_end: whether all go on without interference when the schedule is used up; otherwise the trace says what
            could come next.
        as_far_as_possible: leave out what cannot be chosen, for a schedule of another rung.
        seconds: of the real time after which no further step is taken.

    Raises:
        KeyError: there is no such rung.
        Impossible: somebody is chosen who cannot go on, or something that cannot happen.
        TooLong: it has taken longer than it may.
    """
    entry = LADDER[slug]
    todo = list(schedule)

    def choose(point: Point) -> str:
        while todo:
            wanted = todo.pop(0)
            if wanted in point.enabled or wanted in point.events():
                return wanted
            if not as_far_as_possible:
                can = ", ".join((*point.enabled, *point.events()))
                raise Impossible(f"{wanted!r} cannot come next. What can: {can}.", len(schedule) - len(todo) - 1)
        return point.enabled[0] if to_the_end else STOP

    trial = new_trial(entry, stage, clients)
    happens = events_of(entry) if events is None else events
    run = Controller(trial, choose, events=happens, watch=True, goal=entry.breaks, seconds=seconds).play()
    return Trace(
        slug,
        len(trial.names),
        tuple(run.schedule),
        tuple(run.steps),
        run.choices,
        run.broken,
        run.why,
        run.ledger,
    )
