"""Events for metrics: waits for locks, sizes of batches, and orders that leave the queue.

A process ignores these events until it calls `listen`. Web servers, workers and beat call it, unless METRICS is off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from locking import Lease, Lock


class Observer:
    """Receives the events, and ignores them in this base class. A method must be quick and must not raise."""

    def lock_waited(self, strategy: str, seconds: float, *, granted: bool) -> None:
        """Called when a wait of `seconds` for a lock has ended. `granted` tells whether the lock was granted."""

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        """Called after a lock was held for `seconds` and released. `lost` tells whether its lease had ended before."""

    def batch_saved(self, orders: int) -> None:
        """Called when `group-commit` tries to save this number of orders in one transaction."""

    def refused_from_memory(self) -> None:
        """Called when an order is refused as sold out from the cache of the process, without a query to a server."""

    def left_queue(self, *, saved: int, refused: int) -> None:
        """Called when a worker has taken this many saved and this many refused orders off the queue."""

    def dead_letter(self) -> None:
        """Called when a queued order cannot be saved and is kept as a dead letter."""


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
    """Hold a lock as `lock.hold` does, and report to the observer how long it was waited for and held.

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
