"""Replay schedules on rungs (locks and ways of selling): for pages, for commands, and to check a witness."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.claims.witness import Witness
from lab.explorer.run import STOP, Run, SchedulingPoint
from lab.explorer.scheduler import Scheduler
from lab.explorer.terms import Fault
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import faults_of, new_experiment


class Impossible(Exception):
    """A schedule contains a choice that is not possible at its place.

    Attributes:
        at: the place of the choice in the schedule, from 0.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message, at)
        self.at = at

    def __str__(self) -> str:
        return str(self.args[0])


def rehearse(entry: LadderEntry, witness: Witness, sandbox: Sandbox) -> Run:
    """Replay a stored witness to its end, without recording the data on the servers.

    Raises:
        Impossible: a choice is not possible, for example because the rung's code has changed.
    """
    left = list(witness.schedule)

    def choose(point: SchedulingPoint) -> str:
        if not left:
            return point.enabled[0]
        if left[0] not in point.enabled and left[0] not in point.faults():
            at = len(witness.schedule) - len(left)
            raise Impossible(f"{witness.rung}: {left[0]!r} cannot come next in the stored witness.", at)
        return left.pop(0)

    experiment = new_experiment(entry, sandbox, witness.clients)
    return Scheduler(experiment, choose, faults=faults_of(entry), goal=entry.breaks).play()


def replay(
    slug: str,
    schedule: Sequence[str],
    sandbox: Sandbox,
    *,
    clients: int | None = None,
    faults: Sequence[Fault] | None = None,
    to_the_end: bool = False,
    as_far_as_possible: bool = False,
    seconds: float = math.inf,
) -> Trace:
    """Run a schedule on a rung and record every step.

    Args:
        slug: the rung.
        schedule: the choices, in order: names of actors, and faults.
        sandbox: the sandbox in which to run.
        clients: number of clients. None for as many as the rung needs.
        faults: the faults that may happen. None for the faults that are tried on the rung.
        to_the_end: whether the clients continue after the schedule, without preemptions or faults. If not, the trace
            lists what can happen next.
        as_far_as_possible: whether to skip choices that are not possible. Used for a schedule of another rung.
        seconds: real time in seconds after which no further step is taken.

    Raises:
        KeyError: there is no such rung.
        Impossible: a choice is not possible.
        TooLong: the replay has taken more than `seconds`.
    """
    entry = LADDER[slug]
    left = list(schedule)

    def choose(point: SchedulingPoint) -> str:
        while left:
            wanted = left.pop(0)
            if wanted in point.enabled or wanted in point.faults():
                return wanted
            if not as_far_as_possible:
                possible = ", ".join((*point.enabled, *point.faults()))
                at = len(schedule) - len(left) - 1
                raise Impossible(f"{wanted!r} cannot come next. Possible choices: {possible}.", at)
        return point.enabled[0] if to_the_end else STOP

    experiment = new_experiment(entry, sandbox, clients)
    tried = faults_of(entry) if faults is None else faults
    run = Scheduler(experiment, choose, faults=tried, watch=True, goal=entry.breaks, seconds=seconds).play()
    return Trace(
        slug,
        len(experiment.names),
        tuple(run.schedule),
        tuple(run.steps),
        run.choices,
        entry.breaks,
        run.broken,
        run.why,
        run.ledger,
    )
