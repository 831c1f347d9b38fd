"""Base class of workloads. A workload is the work of an experiment's clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lab.explorer.actor import Actor, current_actor
from lab.explorer.history import History
from lab.explorer.terms import Job
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.redis_database import shown_keys
from lab.sandbox.sandbox import Sandbox

NAMES = "ABCDEF"
"""The names of the clients. Their number is also the maximum number of clients."""


class Workload(ABC):
    """The work of an experiment's clients with a rung: a lock or a way of selling.

    Args:
        entry: the rung.
        sandbox: the sandbox in which the clients run.
        names: names of the clients.
        history: the history to which they report.
    """

    interchangeable = True
    """Whether a search may exchange the clients, because all have the same job."""

    def __init__(self, entry: LadderEntry, sandbox: Sandbox, names: Sequence[str], history: History) -> None:
        self.entry = entry
        self.sandbox = sandbox
        self.names = names
        self.history = history

    @abstractmethod
    def prepare(self) -> Mapping[str, Job]:
        """Put the initial data into the empty servers. Return the job of each actor, by name."""

    def clean_up(self) -> None:
        """Undo what `prepare` has changed outside of the servers. Safe to call repeatedly, or if `prepare` failed."""

    def finish(self, answers: Mapping[str, str]) -> Mapping[str, str]:
        """Do the work that follows after all clients are done, such as a repair by the shop.

        Return the final answers.
        """
        return answers

    def state(self) -> tuple[Mapping[str, Any], ...]:
        """Return the data on the servers, as text for people."""
        return shown_keys(self.sandbox.redis)


def sleep(seconds: float) -> None:
    """Let the calling actor sleep for a number of seconds on the schedule's clock."""
    cast("Actor", current_actor()).sleep(seconds)
