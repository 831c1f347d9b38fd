"""Events for metrics while stock is taken: waits for locks, sizes of batches, orders that leave the queue.

A process ignores them until it calls `listen`. Only web servers, workers and beat do, unless METRICS is off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from locking import Lease, Lock


class Observer:
    """Receives what happens. This one ignores it. A method must be quick and must not raise."""

    def lock_waited(self, strategy: str, seconds: float, *, granted: bool) -> None:
        """A lock was asked for, and after so many seconds it was granted or not."""

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        """A lock was held for so many seconds, its release included; `lost` if its lease ended before."""

    def batch_saved(self, orders: int) -> None:
        """`group-commit` has tried to save so many orders in one transaction."""

    def refused_from_memory(self) -> None:
        """An order was refused as sold out without asking a server."""

    def left_queue(self, *, saved: int, refused: int) -> None:
        """A worker has taken orders off the queue."""

    def dead_letter(self) -> None:
        """A queued order cannot be saved and is kept as a dead letter."""


_listening = Observer()


def listen(observer: Observer) -> None:
    """Send all later events of this process to an observer."""
    global _listening
    _listening = observer


def observer() -> Observer:
    """Return the observer that receives the events of this process."""
    return _listening


@contextmanager
def hold(lock: Lock, timeout: float, *, strategy: str) -> Iterator[Lease]:
    """Hold a lock as `lock.hold` does, and tell the observer how long it took.

    Args:
        timeout: seconds to wait at most.
        strategy: name of the strategy that holds the lock.

    Raises:
        LockTimeout, LockUnavailable: the lock was not granted.
    """
    asked = granted = time.monotonic()
    lease = None
    try:
        with lock.hold(timeout) as lease:
            granted = time.monotonic()
            _listening.lock_waited(strategy, granted - asked, granted=True)
            yield lease
    finally:
        now = time.monotonic()
        if lease is None:
            _listening.lock_waited(strategy, now - asked, granted=False)
        else:
            _listening.lock_held(strategy, now - granted, lost=lease.lost)
