"""The outcome of one run, and the scheduling points at which a chooser decides what comes next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab.explorer.terms import Invariant, PendingStep
from lab.explorer.trace import Choice, Step

STOP = "stop"
"""The choice that ends a run early, so that the run lists what could come next."""


@dataclass
class SchedulingPoint:
    """A moment in which the chooser decides what comes next.

    Attributes:
        enabled: the actors that can take a step. The actor that took the last step comes first.
        current: the actor that took the last step.
        pending: the step that each enabled actor is about to take.
        fresh: the enabled actors that have not taken a step yet.
        faults: returns which faults can happen instead of a step; it queries the servers.
        key: the key that the trace so far shares with every equivalent trace.
    """

    enabled: tuple[str, ...]
    current: str | None
    pending: Mapping[str, PendingStep]
    fresh: frozenset[str]
    faults: Callable[[], tuple[str, ...]]
    key: int


Chooser = Callable[[SchedulingPoint], str]
"""Returns the name of an actor, a fault, or `STOP`."""


@dataclass
class Run:
    """The outcome of a schedule.

    Attributes:
        schedule: every choice that was made, in order.
        steps: what each choice did; only for a run that was watched.
        answers: what each client was told.
        broken: the invariant that was broken, or None.
        why: how it was broken, in one sentence.
        ledger: the final figures; only for a run that was watched.
        choices: what could come next; only for a run that was stopped.
        preemptions: how often an actor was stopped although it could have gone on.
        faults: how many faults happened.
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
