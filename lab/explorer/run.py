"""The outcome of one run, and its scheduling points: the moments in which a chooser picks the next step or fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab.explorer.terms import Invariant, PendingStep
from lab.explorer.trace import Choice, Step

STOP = "stop"
"""Value that a chooser returns to end a run early. The run then lists the choices that were possible."""


@dataclass
class SchedulingPoint:
    """A moment in which the chooser picks the next step or fault.

    Attributes:
        enabled: the actors that can take a step. The actor that took the last step comes first, if it can.
        current: the actor that took the last step.
        pending: the step that each enabled actor is about to take.
        fresh: the enabled clients and helpers that have not taken a step yet.
        faults: function that returns the faults that can happen now. It queries the servers.
        key: a hash of the steps so far. It is equal for traces that differ only in the order of independent steps.
    """

    enabled: tuple[str, ...]
    current: str | None
    pending: Mapping[str, PendingStep]
    fresh: frozenset[str]
    faults: Callable[[], tuple[str, ...]]
    key: int


Chooser = Callable[[SchedulingPoint], str]
"""A function that picks the next step or fault. It returns the name of an actor, a fault, or `STOP`."""


@dataclass
class Run:
    """The outcome of a schedule.

    Attributes:
        schedule: every choice that was made, in order.
        steps: the effect of each choice. Filled only if the scheduler runs with `watch`.
        answers: the answer of each client and helper.
        broken: the invariant that was broken, or None.
        why: how it was broken, in one sentence.
        ledger: the final figures. Filled only if the scheduler runs with `watch`.
        choices: the possible next choices. Filled only if the chooser has stopped the run.
        preemptions: how often an actor was stopped although it could have gone on.
        faults: number of faults that happened.
    """

    schedule: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    broken: Invariant | None = None
    why: str = ""
    ledger: Mapping[str, int] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    preemptions: int = 0
    faults: int = 0
