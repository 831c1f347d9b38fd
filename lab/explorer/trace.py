"""What a replayed schedule did, step by step: the pages and the terminal show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lab.explorer.terms import Invariant, Where


@dataclass(frozen=True)
class Choice:
    """What can come next.

    Attributes:
        name: the entry for a schedule: the name of an actor, or a fault such as `crash A`.
        does: what it does, for people.
        is_fault: whether it is a fault, not an actor's own step.
    """

    name: str
    does: str
    is_fault: bool


@dataclass(frozen=True)
class Step:
    """One choice of a run, and the state after it.

    Attributes:
        choice: its entry in the schedule.
        actor: the actor that took the step; None for a fault, or for time that passed.
        does: the command, the statement or the fault.
        where: the server, or another place such as the process, in which it took place.
        file: the path, relative to the project's folder, of the line that took the step; empty: none.
        line: the line number, from 1; 0: none.
        forced: whether no actor could go on, so that it was no choice.
        answers: what each client that is done was told.
        holders: the clients that believe they hold the lock.
        blocked: the clients that wait in a server for another.
        state: what the servers store: a list of `{"where", "name", "value", "ttl"}`, TTLs in seconds or None.
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
    """One run of a rung.

    Attributes:
        rung: the slug.
        clients: how many there are.
        schedule: every choice that was made, in order.
        steps: what each choice did, forced ones included.
        choices: what can come next; empty when all actors are done.
        goal: the invariant that the run was to break; None: any.
        broken: the invariant that was broken, or None. It need not be the goal.
        why: how it was broken, in one sentence; empty when it was not.
        ledger: the final figures by name: units at the start, units left, units sold.
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
        """Whether every actor is done."""
        return not self.choices

    @property
    def reached(self) -> bool:
        """Whether the run has broken its goal."""
        return self.broken is not None and self.goal in (None, self.broken)

    def as_json(self) -> dict[str, Any]:
        """Return the trace as JSON values."""
        return asdict(self) | {"ended": self.ended, "reached": self.reached}
