"""Base class of the checkers, which report broken invariants and the final figures of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from lab.explorer.history import History
from lab.explorer.terms import Violation
from lab.sandbox.sandbox import Sandbox


class Checker(ABC):
    """Checks the result of one run, after all clients are done.

    Args:
        sandbox: the sandbox in which the clients ran.
        history: the history of the run.
    """

    def __init__(self, sandbox: Sandbox, history: History) -> None:
        self.sandbox = sandbox
        self.history = history

    @abstractmethod
    def check(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        """Return every violation of an invariant.

        Args:
            answers: the answer of each client, by name.
        """

    @abstractmethod
    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        """Return the final figures by name."""
