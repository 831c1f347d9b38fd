"""The trace of a replayed schedule, step by step, for the pages and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lab.explorer.terms import Invariant, Where


@dataclass(frozen=True)
class Choice:
    """An actor's step or a fault that can happen next.

    Attributes:
        name: its entry in a schedule: the name of an actor, or a fault such as `crash A`.
        does: a description for people.
        is_fault: whether it is a fault and not an actor's step.
    """

    name: str
    does: str
    is_fault: bool


@dataclass(frozen=True)
class Step:
    """One choice of a run, and the state after it.

    Attributes:
        choice: its entry in the schedule.
        actor: the actor that took the step or crashed; for a step of a watchdog thread, the actor whose lease it
            renews. None for other faults, and for time that passed.
        does: the command, the statement or the fault.
        where: the server, or another place such as the process, in which it took place.
        file: path, relative to the project folder, of the code that ran the step. Empty if none is known.
        line: line number in the file, from 1; 0 if none is known.
        forced: whether there was no choice, because no actor could go on.
        answers: the answer of each client and helper that is done.
        holders: the clients that believe they hold the lock.
        blocked: the clients that wait in a server for another client.
        state: the data on the servers: a list of `{"where", "name", "value", "ttl"}`, TTLs in seconds or None.
    """

    choice: str
    actor: str | None
    does: str
    where: Where
    file: str
    line: int
    forced: bool
    answers: Mapping[str, str]
    holders: tuple[str, ...]
    blocked: tuple[str, ...]
    state: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Trace:
    """One run of a rung (a lock or way of selling).

    Attributes:
        rung: slug of the rung.
        clients: number of clients.
        schedule: every choice that was made, in order.
        steps: the effect of each choice. The list includes steps that were not chosen, such as time that passed.
        choices: the possible next choices. Empty when the run is over.
        goal: the invariant that the run should break; None for any invariant.
        broken: the invariant that was broken, or None. It may differ from the goal.
        why: how the invariant was broken, in one sentence. Empty if no invariant was broken.
        ledger: the final figures by name, such as units received and units sold.
    """

    rung: str
    clients: int
    schedule: tuple[str, ...]
    steps: tuple[Step, ...]
    choices: tuple[Choice, ...]
    goal: Invariant | None
    broken: Invariant | None
    why: str
    ledger: Mapping[str, int]

    @property
    def ended(self) -> bool:
        """Whether the run is over: all actors are done, or a violation has ended the run early."""
        return not self.choices

    @property
    def reached(self) -> bool:
        """Whether the run has broken the invariant `goal`, or any invariant if `goal` is None."""
        return self.broken is not None and self.goal in (None, self.broken)

    def as_json(self) -> dict[str, Any]:
        """Return the trace as JSON values."""
        return asdict(self) | {"ended": self.ended, "reached": self.reached}
