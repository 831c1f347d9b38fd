"""ReentrantLock: lets whoever holds a lock enter again. Only the outermost release gives the lock back.

Who "whoever" is decides everything. A thread id or the id of an object is given again to the next one when the first
has ended, so an owner is told by a weak reference, which equals no other once its object is gone.
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

from locking.errors import LeaseLost
from locking.lease import Lease, _State
from locking.lock import Lock, wait_timeout


class _Thread:
    """Stands for a thread, and ends with it. (`threading.current_thread()` may be the object of an earlier thread.)"""

    __slots__ = ("__weakref__",)


class _Call:
    """Stands for what runs in one thread or greenlet in one context, and ends with either.

    The threads of a pool run the calls of many tasks one after the other, each in a context of its own.
    """

    __slots__ = ("__weakref__", "place")

    def __init__(self, place: object) -> None:
        self.place = weakref.ref(place)


_here = threading.local()
_call: ContextVar[_Call | None] = ContextVar("locking.reentrant", default=None)


def current_owner() -> Hashable:
    """Return who runs this: the asyncio task, else the greenlet, else the thread, and never one that has ended.

    What `asyncio.to_thread` runs is an owner of its own, neither the task that waits for it nor the thread of the pool
    that happens to run it. Other executors bring no context, so there it is the thread, as for `threading.RLock`.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    if task is not None:
        return weakref.ref(task)
    place = _place()
    call = _call.get()
    if call is None or call.place() is not place:
        call = _Call(place)
        _call.set(call)
    return weakref.ref(call)


def _place() -> object:
    greenlet = sys.modules.get("greenlet")
    current = greenlet.getcurrent() if greenlet is not None else None
    if current is not None and current.parent is not None:
        return current
    # The main greenlet is the thread, which must not change when somebody imports greenlet in between.
    try:
        return _here.thread
    except AttributeError:
        _here.thread = _Thread()
        return _here.thread


class ReentrantLock(Lock):
    """Makes any lock re-entrant: who holds it enters again at once, without asking, and the entries are counted.

    Who holds what is known to this object alone. Another ReentrantLock of the same name is another holder, also in the
    same thread, and waits: share the object. In a forked child it is not held.

    All leases of one grant have its token, fence, time and loss, and may be passed on: another thread can check, extend
    and release them, and the last one to be released gives the lock back. When the grant is lost, all its leases are,
    and entering again asks the lock anew. `on_lost` of the inner lock is given the inner lock's own lease.

    A task is an owner of its own, also towards the code that runs its loop and the threads that it waits for: these
    wait for it, for ever if it waits for them. Where that is not what you mean, say who the owner is, for instance by
    a context variable that the request has set: `ReentrantLock(lock, owner=request_id.get)`.

    Args:
        lock: the lock that is asked. Use it through this object only.
        owner: tells who asks. Equal owners are one holder; the process need not be part of it. Only who asks while an
            equal owner holds it enters again. Those who ask together are granted it one after the other, so none of
            them may wait for the others while he holds it.
    """

    def __init__(self, lock: Lock, *, owner: Callable[[], Hashable] = current_owner) -> None:
        super().__init__(lock.name, ttl=lock.ttl)
        self.capabilities = replace(lock.capabilities, reentrant=True)
        self._lock = lock
        self._owner = owner
        # Weak: a grant is kept by its leases, so it goes with them when their owner has died or forgotten them.
        self._grants: weakref.WeakValueDictionary[Hashable, Grant] = weakref.WeakValueDictionary()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. Entering again neither waits nor asks the server."""
        wait_timeout(blocking, timeout)  # wrong arguments are wrong for everybody
        key = (os.getpid(), self._owner())
        held = self._grants.get(key)
        if held is not None and (lease := held.enter(self)) is not None:
            return lease
        inner = self._lock.acquire(blocking, timeout)
        if inner is None:
            return None
        grant = Grant(key, inner)
        self._grants[key] = grant
        return grant.enter(self, first=True)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        try:
            cast(ReentrantLease, lease).grant.inner.extend(ttl)
        except LeaseLost:
            return False
        return True

    def _release(self, lease: Lease) -> bool:
        mine = cast(ReentrantLease, lease)
        grant = mine.grant
        entered, others = grant.leave(mine)
        if others:
            return entered
        if self._grants.get(grant.key) is grant:
            self._grants.pop(grant.key, None)
        return grant.inner.release()


class Grant:
    """One grant of the inner lock, and how many leases share it.

    Args:
        key: the process and the owner that it was granted to.
        inner: the lease of the inner lock.
    """

    __slots__ = ("__weakref__", "_entries", "_mutex", "inner", "key")

    def __init__(self, key: Hashable, inner: Lease) -> None:
        self.key = key
        self.inner = inner
        self._entries = 0
        # Re-entrant, since the garbage collector may run a finalizer that releases a lease while we are in here.
        self._mutex = threading.RLock()

    def enter(self, lock: Lock, *, first: bool = False) -> ReentrantLease | None:
        """Return one more lease, or None when the grant is over. Whoever comes first is not asked: the lock is his."""
        lease = ReentrantLease(lock, self)
        with self._mutex:
            self._entries += 1  # before anything else, so that nobody who leaves meanwhile believes to be the last
            lease.entered = first or (self._entries > 1 and self.inner.remaining() > 0)
            self._entries -= not lease.entered
        return lease if lease.entered else None

    def leave(self, lease: ReentrantLease) -> tuple[bool, int]:
        """Strike the lease off, and return whether it counted until now, and how many others still do."""
        with self._mutex:
            entered, lease.entered = lease.entered, False
            self._entries -= entered
            return entered, self._entries


class ReentrantLease(Lease):
    """A share of a grant: its own is only whether it was released."""

    __slots__ = ("entered", "grant")

    def __init__(self, lock: Lock, grant: Grant) -> None:
        inner = grant.inner
        # Its own time never ends: the grant's does.
        super().__init__(
            lock, inner.token, started=math.inf, ttl=inner.ttl, clock=inner._clock, fence=inner.fence, on_lost=None
        )
        self.grant = grant
        self.entered = False

    def remaining(self) -> float:
        """See `Lease.remaining`."""
        return min(super().remaining(), self.grant.inner.remaining())

    def _ended(self) -> bool:
        return self.grant.inner.lost

    def _lose(self) -> None:
        self.grant.inner._lose()  # which says so, once for all who share it
        with self._mutex:
            if self._state is _State.HELD:
                self._state = _State.LOST
