"""The history of a run: which clients hold the lock, which have crashed, and how many faults happened."""

from __future__ import annotations

from lab.explorer.terms import Violation


class History:
    """The record of one run.

    Args:
        exclusive: whether two holders at the same time break the invariant `one holder`.
        holders_known: whether the clients report when they enter and leave. If not, `inside` stays empty.

    Attributes:
        inside: the clients that believe they hold the lock, in the order of their grants.
        crashed: the clients that have crashed.
        broken: the first violation that was seen while the clients ran.
        faults: number of faults that happened, without crashes.
        server_faults: number of these faults that hit a server of a `ServerGroup`.
    """

    def __init__(self, *, exclusive: bool = True, holders_known: bool = True) -> None:
        self.exclusive = exclusive
        self.holders_known = holders_known
        self.clear()

    def clear(self) -> None:
        """Clear the history for the next run."""
        self.inside: list[str] = []
        self.crashed: set[str] = set()
        self.broken: Violation | None = None
        self.faults = 0
        self.server_faults = 0

    def enter(self, name: str) -> None:
        """Record that a client was granted the lock and begins to work."""
        self.inside.append(name)
        if self.exclusive and len(self.inside) > 1 and self.broken is None:
            self.broken = "one holder", f"{' and '.join(self.inside)} are inside at the same time."

    def leave(self, name: str) -> None:
        """Record that a client has done its work. It releases the lock after that."""
        self.inside.remove(name)

    def crash(self, name: str) -> None:
        """Record that a client has crashed, so it no longer holds the lock."""
        self.crashed.add(name)
        if name in self.inside:
            self.inside.remove(name)


class ChainHistory(History):
    """A history that tolerates an overlap of two holders, but not a further overlap that follows from it.

    A client that enters while another client holds the lock is tolerated. If a third client enters while the second one
    is inside, the invariant is broken.
    """

    def clear(self) -> None:
        """Clear the history for the next run."""
        super().clear()
        self._beside: set[str] = set()

    def enter(self, name: str) -> None:
        """Record that a client was granted the lock. Only a second overlap in a row breaks the invariant."""
        self.exclusive = not self._beside.isdisjoint(self.inside)
        if self.inside:
            self._beside.add(name)
        super().enter(name)
