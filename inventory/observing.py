"""Events for metrics and traces: waits for locks, batches, commits, and the path of orders through the queue.

A process ignores these events until it calls `listen`. Web servers and workers call it if METRICS or TRACES is on, and
beat calls it if METRICS is on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from uuid import UUID

from django.db import transaction

from locking import Lease, Lock


class Observer:
    """Base class of receivers of events. Its methods do nothing. An override must be quick and must not raise."""

    def lock_waited(self, strategy: str, seconds: float, *, granted: bool) -> None:
        """Handle the end of a wait of `seconds` for a lock. `granted` tells whether the lock was granted."""

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        """Handle the release of a lock that was held for `seconds`.

        `lost` tells whether its lease had ended before the release.
        """

    def batch_saved(self, orders: int) -> None:
        """Handle an attempt of `group-commit` to save this number of orders together."""

    def batch_waited(self, since: float, until: float) -> None:
        """Handle an order that `group-commit` has tried to save. It waited from `since` to `until` for its batch.

        Both are values of `time.monotonic`.
        """

    def committed(self, seconds: float) -> None:
        """Handle orders that Postgres has committed. COMMIT, or the statement that commits, took `seconds`."""

    def refused_from_memory(self) -> None:
        """Handle an order that is refused as sold out from the cache of the process, without a query to a server."""

    def queueing(self) -> AbstractContextManager[str]:
        """Return a context in which an order is queued. It gives the `traceparent` of the order, or an empty string."""
        return nullcontext("")

    def saving(self, traces: Mapping[UUID, str]) -> AbstractContextManager[None]:
        """Return a context in which a worker saves a batch of queued orders.

        Args:
            traces: the `traceparent` that `queueing` gave for each order, by order id.
        """
        return nullcontext()

    def left_queue(self, *, ages: Sequence[float], refused: int) -> None:
        """Handle orders that a worker has taken off the queue.

        Args:
            ages: for each saved order, the seconds since it was queued, by the clocks of Redis and the worker.
            refused: the number of orders that were not saved.
        """

    def dead_letter(self) -> None:
        """Handle a queued order that cannot be saved and is kept as a dead letter."""


_observers: tuple[Observer, ...] = ()


def listen(*added: Observer) -> None:
    """Send all later events of this process to these observers, too."""
    global _observers
    _observers += added


def ignore(*removed: Observer) -> None:
    """Send these observers no more events."""
    global _observers
    _observers = tuple(each for each in _observers if each not in removed)


def observers() -> Sequence[Observer]:
    """Return the observers that receive the events of this process."""
    return _observers


@contextmanager
def hold(lock: Lock, timeout: float, *, strategy: str) -> Iterator[Lease]:
    """Hold a lock as `lock.hold` does. Tell the observers how long the caller has waited for it and held it.

    Args:
        timeout: seconds to wait at most.
        strategy: name of the strategy that holds the lock.

    Raises:
        LockTimeout, LockUnavailable, NoSuchLock: the lock was not granted.
    """
    asked = granted = time.monotonic()
    lease = None
    try:
        with lock.hold(timeout) as lease:
            granted = time.monotonic()
            for observer in _observers:
                observer.lock_waited(strategy, granted - asked, granted=True)
            yield lease
    finally:
        now = time.monotonic()
        for observer in _observers:
            if lease is None:
                observer.lock_waited(strategy, now - asked, granted=False)
            else:
                observer.lock_held(strategy, now - granted, lost=lease.lost)


def batch_waited(since: float, until: float) -> None:
    """Tell the observers that an order waited for its batch."""
    for observer in _observers:
        observer.batch_waited(since, until)


def measure_commit() -> None:
    """Tell the observers how long the open transaction takes to commit, counted from this call.

    Call it after the last statement of the transaction. If the transaction is rolled back, observers are not told.
    Nor are they told of a transaction that `atomic` did not begin: Django does not know when it is committed.
    """
    if _observers and transaction.get_connection().in_atomic_block:
        began = time.monotonic()
        transaction.on_commit(lambda: committed(time.monotonic() - began), robust=True)


def committed(seconds: float) -> None:
    """Tell the observers that Postgres has committed orders, and how many seconds the commit took."""
    for observer in _observers:
        observer.committed(seconds)


@contextmanager
def queueing() -> Iterator[str]:
    """Tell the observers that an order is put on the queue. Yield its `traceparent`, or "" if it is not traced."""
    with ExitStack() as stack:
        traces = [stack.enter_context(observer.queueing()) for observer in _observers]
        yield next(filter(None, traces), "")


@contextmanager
def saving(traces: Mapping[UUID, str]) -> Iterator[None]:
    """Tell the observers that a worker saves a batch of queued orders. See `Observer.saving`."""
    with ExitStack() as stack:
        for observer in _observers:
            stack.enter_context(observer.saving(traces))
        yield
