"""ReentrantLock: lets the owner of a lock acquire it again. Only the last release gives the lock back.

An owner must never be confused with a later one. Thread ids and object ids are reused after their thread or object has
ended, so an owner is identified by a weak reference, which equals no other reference once its object is gone.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import replace
from typing import cast

from locking.arguments import require_callable
from locking.errors import LeaseLost
from locking.lease import Lease
from locking.lock import Lock, wait_timeout


class _ThreadIdentity:
    """Lives as long as its thread. `threading.current_thread()` can return an object of an earlier thread instead."""

    __slots__ = ("__weakref__",)


class _Execution:
    """Identifies code that runs in one thread or greenlet and one context; ends with either.

    A thread of a pool runs the calls of many tasks one after the other, each in a context of its own.
    """

    __slots__ = ("__weakref__", "place")

    def __init__(self, place: object) -> None:
        self.place = weakref.ref(place)


_local = threading.local()
_execution: ContextVar[_Execution | None] = ContextVar("locking.reentrant", default=None)


def current_owner() -> Hashable:
    """Return the identity of the caller: its asyncio task, else its greenlet, else its thread.

    A function run by `asyncio.to_thread` is an owner of its own: it is neither the task that awaits it nor the pool
    thread that runs it. Other executors set no context, so there the owner is the thread, as with `threading.RLock`.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    if task is not None:
        return weakref.ref(task)
    place = _current_place()
    execution = _execution.get()
    if execution is None or execution.place() is not place:
        execution = _Execution(place)
        _execution.set(execution)
    return weakref.ref(execution)


def _current_place() -> object:
    greenlet = sys.modules.get("greenlet")
    current = greenlet.getcurrent() if greenlet is not None else None
    if current is not None and current.parent is not None:
        return current
    # The main greenlet counts as the thread: the owner must not change when greenlet is imported while a lock is held.
    try:
        return _local.thread
    except AttributeError:
        _local.thread = _ThreadIdentity()
        return _local.thread


class ReentrantLock(Lock):
    """Wrapper that makes any lock re-entrant.

    An owner that holds the lock acquires it again at once, without asking the server. The acquires are counted.

    Ownership is known to this object only. Another ReentrantLock with the same name is another holder and waits, also
    in the same thread: share the object. A forked child does not hold it.

    All leases of one grant share its token, fence, remaining time and loss. They may be passed on: another thread can
    check, extend and release them. The last release gives the lock back. When the grant is lost, all its leases are
    lost, and the next acquire asks the wrapped lock again. `on_lost` of the wrapped lock receives the wrapped lock's
    own lease.

    An asyncio task is an owner of its own. The code that runs its loop and the threads that the task starts are other
    owners: they wait until the task releases the lock, and if the task waits for one of them, both wait for ever. To
    change this, define the owner yourself, for instance by a context variable that each request sets:
    `ReentrantLock(lock, owner=request_id.get)`.

    Args:
        lock: the lock to wrap. Use it through this object only.
        owner: returns the identity of the caller; equal values are one owner, within one process. Only an owner that
            already holds the lock enters at once. Callers with equal owners that acquire it at the same time are
            granted it one after the other, so none of them may wait for another one while it holds the lock.

    Raises:
        TypeError: `lock` is no lock, or `owner` cannot be called.
    """

    def __init__(self, lock: Lock, *, owner: Callable[[], Hashable] = current_owner) -> None:
        if not isinstance(lock, Lock):
            raise TypeError(f"ReentrantLock wraps a lock, not {lock!r}")
        require_callable("owner", owner)
        self.capabilities = replace(lock.capabilities, reentrant=True)
        super().__init__(lock.name, ttl=lock.ttl)
        self._lock = lock
        self._owner = owner
        # Weak: leases keep their grant alive, so the grant is freed once the owner has died or dropped them.
        self._grants: weakref.WeakValueDictionary[Hashable, SharedGrant] = weakref.WeakValueDictionary()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`. An owner that holds it neither waits nor asks the server."""
        wait_timeout(blocking, timeout)  # raises ValueError for wrong arguments, even if the caller holds the lock
        key = (os.getpid(), self._hashable_owner())
        held = self._grants.get(key)
        if held is not None and (lease := held.enter(self)) is not None:
            return lease
        inner = self._lock.acquire(blocking, timeout)
        if inner is None:
            return None
        grant = SharedGrant(key, inner)
        self._grants[key] = grant
        return grant.enter(self, first=True)

    def _hashable_owner(self) -> Hashable:
        owner = self._owner()
        try:
            hash(owner)
        except TypeError as error:
            raise TypeError(f"owner must return a hashable value, not {owner!r}") from error
        return owner

    def _extend(self, lease: Lease, ttl: float) -> bool:
        try:
            cast(ReentrantLease, lease).grant.inner.extend(ttl)
        except LeaseLost:
            return False
        return True

    def _release(self, lease: Lease) -> bool:
        reentrant_lease = cast(ReentrantLease, lease)
        grant = reentrant_lease.grant
        entered, others = grant.leave(reentrant_lease)
        if others:
            return entered
        if self._grants.get(grant.key) is grant:
            self._grants.pop(grant.key, None)
        return grant.inner.release()


class SharedGrant:
    """One grant of the wrapped lock, and the number of leases that share it.

    Args:
        key: process id and owner that it was granted to.
        inner: lease of the wrapped lock.
    """

    __slots__ = ("__weakref__", "_entries", "_mutex", "inner", "key")

    def __init__(self, key: Hashable, inner: Lease) -> None:
        self.key = key
        self.inner = inner
        self._entries = 0
        # Re-entrant: the garbage collector may run a finalizer that releases a lease while this thread holds the mutex.
        self._mutex = threading.RLock()

    def enter(self, lock: Lock, *, first: bool = False) -> ReentrantLease | None:
        """Return one more lease, or None if the grant is over. The first lease of a grant is always returned."""
        lease = ReentrantLease(lock, self)
        with self._mutex:
            self._entries += 1  # count this lease first, so that one that leaves meanwhile does not count as the last
            lease.entered = first or (self._entries > 1 and self.inner.remaining() > 0)
            self._entries -= not lease.entered
        return lease._hand_out() if lease.entered else None

    def leave(self, lease: ReentrantLease) -> tuple[bool, int]:
        """Stop counting the lease. Return whether it was counted until now, and how many leases still are."""
        with self._mutex:
            entered, lease.entered = lease.entered, False
            self._entries -= entered
            return entered, self._entries


class ReentrantLease(Lease):
    """One of the leases that share a grant. Each is released separately; everything else is shared."""

    __slots__ = ("entered", "grant")

    def __init__(self, lock: Lock, grant: SharedGrant) -> None:
        inner = grant.inner
        # `started` is infinite because only the grant's own deadline counts.
        super().__init__(
            lock, inner.token, started=math.inf, ttl=inner.ttl, clock=inner._clock, fence=inner.fence, on_lost=None
        )
        self.grant = grant
        self.entered = False

    def remaining(self) -> float:
        """Return the remaining seconds of the grant, as described in `Lease.remaining`."""
        return min(super().remaining(), self.grant.inner.remaining())

    def _ended(self) -> bool:
        return self.grant.inner.lost

    def _lose(self) -> None:
        self.grant.inner._lose()  # reports the loss once, for all leases of the grant
        self._mark_lost()
