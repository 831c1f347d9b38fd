"""The words of a schedule: invariants, faults, and the step that an actor is about to take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Invariant = Literal["conserved", "one holder", "progress", "no false refusal", "once"]
Fault = Literal["late release", "tick", "expiry", "pause", "crash", "restart", "failover", "clock jump"]
FAULTS_OF_AN_ACTOR: tuple[Fault, ...] = ("tick", "pause", "crash")
"""Faults of one actor. In a schedule the actor's name follows the fault: `crash A`."""

Where = Literal["redis", "postgres", "zookeeper", "etcd", "clock", "process"]
"""Where a step takes place."""

EVERYTHING = "*"
"""The name that stands for all names: a step that touches it commutes with no other step."""
POSTGRES = "postgres"
"""The one name for everything in Postgres: two of its statements are never taken to commute."""


@dataclass(frozen=True)
class PendingStep:
    """The step that an actor is about to take.

    Attributes:
        does: its text for people, the same in every run.
        where: the server that it is sent to.
        reads: the names that it reads.
        writes: the names that it may change.
        seconds: how long it sleeps, or waits in Redis, at most; None: it does neither.
    """

    does: str
    where: Where
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    seconds: float | None = None

    @property
    def quiet(self) -> bool:
        """Whether no other actor can notice the step, so that a switch before it shows nothing new."""
        return not self.reads and not self.writes
