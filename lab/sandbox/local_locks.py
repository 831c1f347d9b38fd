"""Locks without a server, with acquire and release as steps, so that a trace shows them.

These steps touch no shared data, so the search adds no preemption before them. A preemption before the statements
around them has the same outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from lab.explorer.actor import stop_before
from lab.explorer.terms import PendingStep
from locking import Lease, ProcessLock, ThreadLock


class SteppingThreadLock(ThreadLock):
    """A `ThreadLock` whose acquire and release are steps."""

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        """Hold the lock as described in `Lock.hold`, with acquire and release as steps."""
        with _as_steps(super().hold(timeout), "the lock in its memory") as lease:
            yield lease


class SteppingProcessLock(ProcessLock):
    """A `ProcessLock` whose acquire and release are steps."""

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        """Hold the lock as described in `Lock.hold`, with acquire and release as steps."""
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
