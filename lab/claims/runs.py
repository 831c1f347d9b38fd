"""What the pages and the commands ask for: replay a schedule, search for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.claims.witness import Witness
from lab.explorer.scheduler import STOP, Run, Scheduler, SchedulingPoint
from lab.explorer.terms import Fault
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import events_of, new_trial


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


def rehearse(witness: Witness, stage: Sandbox) -> Run:
    """Replay a stored witness to its end, without a look at what the servers keep.

    Raises:
        Impossible: the rung does not do any more what it did when the witness was found.
    """
    entry, todo = LADDER[witness.rung], list(witness.schedule)

    def choose(point: SchedulingPoint) -> str:
        if not todo:
            return point.enabled[0]
        if todo[0] not in point.enabled and todo[0] not in point.events():
            at = len(witness.schedule) - len(todo)
            raise Impossible(f"{witness.rung}: {todo[0]!r} cannot come next in the stored witness.", at)
        return todo.pop(0)

    trial = new_trial(entry, stage, witness.clients)
    return Scheduler(trial, choose, events=events_of(entry), goal=entry.breaks).play()


def replay(
    slug: str,
    schedule: Sequence[str],
    stage: Sandbox,
    *,
    clients: int | None = None,
    events: Sequence[Fault] | None = None,
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

    def choose(point: SchedulingPoint) -> str:
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
    run = Scheduler(trial, choose, events=happens, watch=True, goal=entry.breaks, seconds=seconds).play()
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
