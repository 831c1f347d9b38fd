"""Locks without a server whose taking and freeing are steps, so that a run shows them.

The steps are quiet, so the search switches to another client before the statements around them, and not once more
before the lock itself: the outcome would be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from lab.explorer.actor import stop_before
from lab.explorer.terms import PendingStep
from locking import Lease, ProcessLock, ThreadLock


class SteppingThreadLock(ThreadLock):
    """A `ThreadLock` that stops before it is taken and freed."""

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        """See `Lock.hold`."""
        with _as_steps(super().hold(timeout), "the lock in its memory") as lease:
            yield lease


class SteppingProcessLock(ProcessLock):
    """A `ProcessLock` that stops before it is taken and freed."""

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        """See `Lock.hold`."""
        with _as_steps(super().hold(timeout), "the lock on its file") as lease:
            yield lease


@contextmanager
def _as_steps(held: AbstractContextManager[Lease], lock: str) -> Iterator[Lease]:
    stop_before(PendingStep(f"asks for {lock}", "process"))
    with held as lease:
        try:
            yield lease
        finally:
            stop_before(PendingStep(f"frees {lock}", "process"))
