"""What the scheduler requires of an experiment and of the sandbox in which it runs. The lab implements both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from lab.explorer.actor import Actor
from lab.explorer.history import History
from lab.explorer.terms import Fault, Job, Violation


class Clock(Protocol):
    """Monotonic seconds of a schedule."""

    now: float

    def __call__(self) -> float: ...


class Watchdog(Protocol):
    """Renews the leases of one actor when the schedule says so."""

    def tick(self) -> float:
        """Renew what is due."""
        ...


class Environment(Protocol):
    """The servers in which the steps of actors take place."""

    @property
    def clock(self) -> Clock: ...

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the schedule's clock and in the TTLs of the servers."""
        ...

    def until_expiry(self) -> float | None:
        """Return the seconds until the first key or lease expires; None when none does."""
        ...

    def any_expires(self, names: Collection[str]) -> bool:
        """Return whether one of these names has a TTL."""
        ...

    def fingerprint(self, names: Collection[str]) -> Sequence[Any]:
        """Return a value that changes when an actor that looks at these names again could see a difference."""
        ...

    def is_blocked(self, actor: Actor) -> bool:
        """Return whether an actor waits for another, as its server sees it."""
        ...

    def waits_for_a_thread(self, actor: Actor) -> bool:
        """Return whether an actor waits for another thread of this process."""
        ...

    def terminate(self, actor: Actor) -> None:
        """End the wait of a crashed actor in a server: its thread does not notice the crash by itself."""
        ...

    def disconnect(self, actor: Actor) -> None:
        """Drop the connections of a crashed actor whose thread has ended, and wait until the servers have noticed."""
        ...


class Experiment(Protocol):
    """Clients who use a rung in a sandbox, the faults that may hit them, and the check of what must hold.

    Attributes:
        name: name of the rung, for messages.
        names: names of the clients.
        ttl: seconds for which a lease lasts.
        interchangeable: whether all clients do the same, so that only one of them has to be tried for a first step.
        history: what has happened in the current run.
        watchdogs: the watchdogs of the current run by the actor's name.
    """

    @property
    def name(self) -> str: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def ttl(self) -> float: ...
    @property
    def interchangeable(self) -> bool: ...
    @property
    def history(self) -> History: ...
    @property
    def environment(self) -> Environment: ...
    @property
    def watchdogs(self) -> Mapping[str, Watchdog]: ...

    def begin(self) -> Mapping[str, Job]:
        """Prepare the servers and return the job of each actor by name."""
        ...

    def end(self) -> None:
        """Undo what `begin` did. Safe to call more than once."""
        ...

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now, to one actor or to all."""
        ...

    def inject(self, fault: Fault, actor: str = "") -> None:
        """Cause a fault."""
        ...

    def wake_watchdog(self, actor: str) -> None:
        """Let the time pass after which the watchdog of an actor renews. The scheduler runs the renewal itself."""
        ...

    def crash(self, actor: str) -> None:
        """Record that an actor has crashed, and that its watchdog renews nothing any more."""
        ...

    def state(self) -> tuple[Mapping[str, Any], ...]:
        """Return what the servers store, as text for people."""
        ...

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        """Return every violation that is found once all actors are done."""
        ...

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        """Return the final figures by name."""
        ...
