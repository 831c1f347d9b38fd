"""Terms of schedules. A schedule is the order in which actors take their steps, with faults in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

Invariant = Literal["conserved", "one holder", "progress", "no false refusal", "once"]
Violation = tuple[Invariant, str]
"""A broken invariant, and a sentence that says how it was broken."""

Fault = Literal["late release", "tick", "expiry", "pause", "crash", "restart", "failover", "clock jump"]
FAULTS_OF_AN_ACTOR: tuple[Fault, ...] = ("tick", "pause", "crash")
"""Faults of one actor. In a schedule the actor's name follows the fault: `crash A`."""
FAULT_TEXTS: Mapping[Fault, str] = {
    "late release": "The TTL passes before the release",
    "tick": "A third of the TTL passes, and the watchdog wakes to renew the lease",
    "expiry": "The TTL passes while a client works, and the watchdogs renew in time",
    "crash": "The process crashes before its next step, and its connections drop",
    "pause": "The client is paused for longer than the TTL, and its watchdog with it",
    "restart": "The server restarts",
    "failover": "The server is lost, and a replica that lags behind takes its place",
    "clock jump": "The server's clock is set forward by more than the TTL",
}

Job = Callable[[], str]
"""The job of one actor. It returns the actor's answer."""

Where = Literal["redis", "postgres", "zookeeper", "etcd", "clock", "process"]
"""The server or other place in which a step takes place."""

EVERYTHING = "*"
"""The name of all data. A step that reads or writes this name commutes with no other step."""
POSTGRES = "postgres"
"""One name for all data in Postgres. So a statement that writes commutes with no other statement that uses data."""

CRASHED = "crashed"
"""The answer of an actor that has crashed."""


class Crash(BaseException):
    """Raised in the thread of a crashed actor. The actor then takes neither its pending step nor a later step."""


@dataclass(frozen=True)
class PendingStep:
    """The step that an actor is about to take.

    A name stands for data that steps share. It is a key of Redis, or a constant such as `POSTGRES`.

    Attributes:
        does: a description for people, the same in every run.
        where: the server or other place in which it takes place.
        reads: the names of the data that it reads.
        writes: the names of the data that it may change.
        seconds: longest time that it sleeps or waits in Redis. None if it does neither.
    """

    does: str
    where: Where
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    seconds: float | None = None

    @property
    def quiet(self) -> bool:
        """Whether no other actor can notice the step. If so, a switch to another actor just before it has no effect."""
        return not self.reads and not self.writes


def parse_fault(choice: str) -> tuple[Fault, str]:
    """Split a choice, such as `crash A`, into fault and actor. The actor is empty if the fault hits no single actor."""
    fault, _, actor = choice.rpartition(" ")
    return (fault, actor) if fault in FAULTS_OF_AN_ACTOR else (cast("Fault", choice), "")


def watchdog_of(actor: str) -> str:
    """Return the name of an actor's watchdog thread in schedules."""
    return f"{actor}'s watchdog"
