"""What a replayed schedule did, step by step: what the pages and the terminal show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lab.explorer.terms import Invariant, Where


@dataclass(frozen=True)
class Choice:
    """What may come next.

    Attributes:
        name: as it stands in a schedule: an actor's name, or an event such as `crash A`.
        does: what it will do, for people.
        event: whether something happens to an actor or to the world, as against an actor's own next step.
    """

    name: str
    does: str
    event: bool


@dataclass(frozen=True)
class Step:
    """Something that was done.

    Attributes:
        choice: the entry of the schedule that it was.
        actor: whose step it was; None: the world's.
        does: the command, the statement or the event.
        where: the server or the part of the world that it concerned.
        file: the path, below the project's folder, of the line of the rung or of the lock that did it; empty: none.
        line: its number, from 1; 0: none.
        forced: nobody could go on, so this was no choice.
        answers: whoever has finished by now, and what he was told.
        holders: who thinks by now that he is inside.
        blocked: who waits by now in a server for somebody else.
        state: what the servers keep by now: a list of `{"where", "name", "value", "ttl"}`, TTLs in seconds or None.
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
        clients: how many actors there are.
        schedule: every choice that was made, in order.
        steps: what each did, forced ones included.
        choices: what may come next; empty when all is done.
        broken: the invariant that was broken, or None.
        why: how it was broken, in one sentence; empty when it was not.
        ledger: the figures at the end, by name: what was there, what is left, what was sold.
    """

    rung: str
    clients: int
    schedule: tuple[str, ...]
    steps: tuple[Step, ...]
    choices: tuple[Choice, ...]
    broken: Invariant | None
    why: str
    ledger: Mapping[str, int]

    @property
    def ended(self) -> bool:
        """Whether nobody has anything left to do."""
        return not self.choices

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ended": self.ended}
