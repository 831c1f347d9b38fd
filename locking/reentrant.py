"""ReentrantLock: lets the owner of a lock acquire it again. Only the last release gives the lock back.

The owner is a task, a greenlet or a thread. Ids of threads and objects are reused, so an id could confuse an owner with
a later owner. A weak reference identifies the owner instead: once the owner's object is gone, the reference equals no
other reference.
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
    """An object that lives as long as its thread.

    `threading.current_thread()` does not fit: it may return the object of an earlier thread.
    """

    __slots__ = ("__weakref__",)


class _Execution:
    """Identifies the code that runs in one `contextvars` context of one thread or greenlet.

    The identity ends when the context ends, or when the thread or greenlet ends. The context is needed because a pool
    thread runs calls of many tasks one after the other. Each call has its own context.
    """

    __slots__ = ("__weakref__", "place")

    def __init__(self, place: object) -> None:
        self.place = weakref.ref(place)


_local = threading.local()
_execution: ContextVar[_Execution | None] = ContextVar("locking.reentrant", default=None)


def current_owner() -> Hashable:
    """Return the caller's identity: its asyncio task; without a task, its greenlet; without a greenlet, its thread.

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
    # The main greenlet counts as the thread. Otherwise, importing greenlet while a lock is held would change the owner.
    try:
        return _local.thread
    except AttributeError:
        _local.thread = _ThreadIdentity()
        return _local.thread


class ReentrantLock(Lock):
    """Wrapper that makes any lock re-entrant.

    An owner that holds the lock acquires it again immediately, without asking the server. The acquires are counted.

    Only this object knows its owner, so share the object. Another ReentrantLock with the same name is another holder
    and waits, even in the same thread. A forked child does not hold the lock.

    All leases of one grant share its token, fence and remaining time. Another thread may check, extend and release
    them. The last release gives the lock back. When the grant is lost, all its leases are lost, and the next acquire
    asks the wrapped lock again. `on_lost` of the wrapped lock receives the wrapped lock's own lease.

    An asyncio task is an owner. The code that runs its loop, and threads that the task starts, are other owners. They
    wait until the task releases the lock. If the task waits for such an owner while it holds the lock, both wait for
    ever. To change this, define the owner yourself, for instance by a context variable that each request sets:
    `ReentrantLock(lock, owner=request_id.get)`.

    Args:
        lock: the lock to wrap. Use it through this object only.
        owner: returns the identity of the caller, which must be hashable and not None. Callers in one process with
            equal values are one owner. If they ask for a free lock at the same time, they get it one after the other.
            While a caller holds the lock, it must not wait for another caller with the same value.

    Raises:
        TypeError: `lock` is not a `Lock`, or `owner` cannot be called.
    """

    def __init__(self, lock: Lock, *, owner: Callable[[], Hashable] = current_owner) -> None:
        if not isinstance(lock, Lock):
            raise TypeError(f"ReentrantLock wraps a lock, not {lock!r}")
        require_callable("owner", owner)
        self.capabilities = replace(lock.capabilities, reentrant=True)
        super().__init__(lock.name, ttl=lock.ttl)
        self._lock = lock
        self._owner = owner
        # Weak references: only its leases keep a grant alive, so the lock is freed once the last of them is dropped.
        self._grants: weakref.WeakValueDictionary[Hashable, SharedGrant] = weakref.WeakValueDictionary()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`. If the caller owns the lock, the server is not asked.

        Raises:
            TypeError: `owner` returned None, or a value that is not hashable.
        """
        wait_timeout(blocking, timeout)  # check the arguments even if the caller holds the lock
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
        if owner is None:  # for example, a context variable is not set
            raise TypeError("owner must return who the caller is, not None: all callers without one would be one owner")
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
        key: id of the process, and the owner to which the lock was granted.
        inner: lease of the wrapped lock.
    """

    __slots__ = ("__weakref__", "_entries", "_mutex", "inner", "key")

    def __init__(self, key: Hashable, inner: Lease) -> None:
        self.key = key
        self.inner = inner
        self._entries = 0
        # Re-entrant: while a thread holds it, the garbage collector may run a finalizer that releases a lease.
        self._mutex = threading.RLock()

    def enter(self, lock: Lock, *, first: bool = False) -> ReentrantLease | None:
        """Return one more lease, or None if the grant is over.

        Args:
            first: whether this is the first lease of the grant. It is returned even if the grant has just ended.
        """
        lease = ReentrantLease(lock, self)
        with self._mutex:
            # Count the new lease first. Otherwise another lease that is released meanwhile would count as the last.
            self._entries += 1
            lease.entered = first or (self._entries > 1 and self.inner.remaining() > 0)
            self._entries -= not lease.entered
        return lease._hand_out() if lease.entered else None

    def leave(self, lease: ReentrantLease) -> tuple[bool, int]:
        """Stop counting `lease`. Return whether it was counted before, and the number of leases that are left."""
        with self._mutex:
            entered, lease.entered = lease.entered, False
            self._entries -= entered
            return entered, self._entries


class ReentrantLease(Lease):
    """One of the leases that share a grant. Each is released separately; everything else is shared."""

    __slots__ = ("entered", "grant")

    def __init__(self, lock: Lock, grant: SharedGrant) -> None:
        inner = grant.inner
        # With an infinite `started`, this lease has no deadline of its own: only that of the grant counts.
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
