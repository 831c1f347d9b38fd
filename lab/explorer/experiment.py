"""Interfaces that the scheduler needs: an experiment and its servers. The packages beside this one implement them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from lab.explorer.actor import Actor
from lab.explorer.history import History
from lab.explorer.terms import Fault, Job, Violation


class VirtualClock(Protocol):
    """The clock of a schedule, in monotonic seconds."""

    now: float

    def __call__(self) -> float: ...


class Watchdog(Protocol):
    """Renews the leases of one actor, at moments that the schedule chooses."""

    def tick(self) -> float:
        """Renew the leases that are due. Return the seconds until the next lease is due."""
        ...


class Environment(Protocol):
    """The servers in which actors take their steps."""

    @property
    def clock(self) -> VirtualClock: ...

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the schedule's clock and in the TTLs of the servers."""
        ...

    def until_expiry(self) -> float | None:
        """Return the seconds until the first key or lease expires. None if none will expire."""
        ...

    def any_expires(self, names: Collection[str]) -> bool:
        """Return whether the data under at least one of these names has a TTL. See `PendingStep` for names."""
        ...

    def fingerprint(self, names: Collection[str]) -> Sequence[Any]:
        """Return a value that changes when the data that actors can read under these names changes."""
        ...

    def is_blocked(self, actor: Actor) -> bool:
        """Ask the servers whether an actor waits for another actor."""
        ...

    def waits_for_a_thread(self, actor: Actor) -> bool:
        """Return whether an actor waits for another thread of this process."""
        ...

    def terminate(self, actor: Actor) -> None:
        """End the wait of a crashed actor in a server, because its waiting thread cannot notice the crash."""
        ...

    def disconnect(self, actor: Actor) -> None:
        """Drop the connections of a crashed actor whose thread has ended. Wait until the servers have noticed."""
        ...


class Experiment(Protocol):
    """Clients of a lock or a way of selling, faults that may hit them, and the check of the invariants.

    Attributes:
        name: slug of the lock or way of selling, for messages.
        names: names of the clients.
        ttl: duration of a lease in seconds.
        interchangeable: whether a search may exchange the clients, because all have the same job. If so, it tries only
            one of the clients that have taken no step yet.
        history: the record of the current run.
        watchdogs: the watchdogs of the current run, by the names of their actors.
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
        """Prepare the servers. Return the job of each actor, by name."""
        ...

    def end(self) -> None:
        """Undo the changes of `begin`. Safe to call more than once."""
        ...

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now.

        Args:
            actor: name of the actor that the fault hits. Empty for a fault that hits no single actor.
        """
        ...

    def inject(self, fault: Fault, actor: str = "") -> None:
        """Make a fault happen. Call it only after `offers` has returned True for the same fault and actor."""
        ...

    def wake_watchdog(self, actor: str) -> None:
        """Let time pass until an actor's watchdog has to renew. The scheduler then runs the renewal in a thread."""
        ...

    def crash(self, actor: str) -> None:
        """Record that an actor has crashed, and stop its watchdog."""
        ...

    def state(self) -> tuple[Mapping[str, Any], ...]:
        """Return the data on the servers, for people: mappings with `where`, `name`, `value` and `ttl` in seconds."""
        ...

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        """Return every invariant that the run has broken. Call it after all actors are done."""
        ...

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        """Return the final figures by name."""
        ...
