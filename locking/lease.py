"""Lease: one grant of a lock. It has a limited lifetime, and tells when its lifetime is over.

A holder can be paused for longer than its lease, for example by garbage collection, SIGSTOP or a suspended virtual
machine. Then it continues without noticing the pause. No lock can prevent this; the lease can only report it.
Therefore:

- call `check()` before every step that depends on the lock;
- let your store refuse a `fence` lower than the highest one that it has seen. The pause may come right after the check,
  and the monotonic clock may stand still while a machine is suspended.

Source: M. Kleppmann, "How to do distributed locking",
https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
"""

from __future__ import annotations

import enum
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Protocol, Self

from locking.arguments import require_seconds
from locking.errors import LeaseLost, NotOwner

logger = logging.getLogger(__name__)

DRIFT_FACTOR = 0.01
DRIFT_SECONDS = 0.002


def validity(ttl: float) -> float:
    """Return for how many seconds a holder may trust a lease of `ttl` seconds.

    The result is shorter than the TTL by the drift allowance, because the clocks of the holder and the server may run
    at different speeds.

    Source: "Distributed Locks with Redis", https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """
    return ttl * (1 - DRIFT_FACTOR) - DRIFT_SECONDS


class LeaseBackend(Protocol):
    """The methods of a lock that its leases call. `locking.lock.Lock` documents them."""

    name: str

    def _extend(self, lease: Lease, ttl: float) -> bool: ...

    def _release(self, lease: Lease) -> bool: ...


class _State(enum.Enum):
    HELD = enum.auto()
    LOST = enum.auto()
    RELEASED = enum.auto()


class Lease:
    """One grant of one lock.

    Any thread of the process that acquired the lease may use it. In a child after `fork`, every use raises `NotOwner`
    because the parent still holds the lease.

    A lease starts as held and becomes either lost or released; both states are final. It is lost when its lifetime is
    over on the local clock, even if the server still keeps the grant. It is also lost when the server reports that the
    lease no longer has the lock. It is released by the first call of `release()`, even if the server does not respond.
    From then on, `lost` no longer changes and `on_lost` is not called.

    A program may drop the last reference to a held lease, as in `if lock.acquire(): …`. Python then reports a
    ResourceWarning. Renewal then stops, so the lock is free again after the TTL at the latest.

    Locks create leases; applications do not. A lock that needs to remember more about a grant uses a subclass.

    Args:
        lock: the lock that granted the lease. The lease calls it to extend and release the grant.
        token: identifies this grant; unique.
        started: time just before the granting request was sent, in seconds on `clock`.
        ttl: lifetime of the grant on the server unless extended, in seconds; `math.inf` for no limit.
        clock: returns monotonic seconds.
        fence: fencing token of the grant, or None if the lock provides none.
        on_lost: called once, with the lease, when the lease is lost. It runs in the thread that notices the loss first.
            It must not block, because this may be the watchdog's thread, which renews all leases of the process.
        validity: returns for how many seconds a grant of the given TTL may be trusted. A lock with a drift allowance of
            its own passes its own function.

    Attributes:
        token: identifies this grant.
        fence: fencing token, greater than that of every earlier grant of the same lock; None if the lock has none.
        ttl: lifetime of the grant unless extended, in seconds.
    """

    __slots__ = (
        "__weakref__",
        "_answered",
        "_clock",
        "_deadline",
        "_handed_out",
        "_lock",
        "_mutex",
        "_on_lost",
        "_pid",
        "_state",
        "_unanswered",
        "_validity",
        "fence",
        "token",
        "ttl",
    )

    def __init__(
        self,
        lock: LeaseBackend,
        token: str,
        *,
        started: float,
        ttl: float,
        clock: Callable[[], float],
        fence: int | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        validity: Callable[[float], float] = validity,
    ) -> None:
        self._handed_out = False
        self.token = token
        self.fence = fence
        self.ttl = ttl
        self._lock = lock
        self._clock = clock
        self._on_lost = on_lost
        self._validity = validity
        self._deadline = started + validity(ttl)
        self._state = _State.HELD
        self._answered = False
        self._unanswered = False
        # Re-entrant: while a thread holds it, a signal handler or a finalizer may release the lease.
        self._mutex = threading.RLock()
        self._pid = os.getpid()

    def __del__(self) -> None:
        if getattr(self, "_handed_out", False) and self._is_dropped():
            warnings.warn(
                f"A lease of lock {self.name!r} was dropped without release(). Keep what acquire() returns and release "
                "it, or use `with lock.hold()`.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _hand_out(self) -> Self:
        """Return the lease, which then warns if it is dropped without a release. Locks call this in `acquire`."""
        self._handed_out = True
        return self

    def _is_dropped(self) -> bool:
        """Return whether a lease that the garbage collector removes still has the lock in this process."""
        own = self._pid == os.getpid() and not sys.is_finalizing()
        return own and self._state is _State.HELD and not self._ended()

    def __repr__(self) -> str:
        return f"<Lease of {self.name!r}, fence {self.fence}, {self._state.name.lower()}>"

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._lock.name

    @property
    def lost(self) -> bool:
        """Whether the lease was lost before it was released.

        Raises:
            NotOwner: the caller is a child after `fork`.
        """
        self._require_own_process()
        return self._state is _State.LOST or (self._state is _State.HELD and self._ended())

    def remaining(self) -> float:
        """Return for how many more seconds the lease is guaranteed; 0.0 once it is lost or released.

        The lifetime is counted on the local monotonic clock, from just before the request was sent, less the drift
        allowance.

        Raises:
            NotOwner: the caller is a child after `fork`.
        """
        self._require_own_process()
        if self._state is not _State.HELD or self._ended():
            return 0.0
        return max(0.0, self._deadline - self._clock())

    def check(self) -> None:
        """Raise an error if the lease is lost or released. Looks only at local state, without a request to the server.

        Raises:
            LeaseLost: the lifetime is over, or the server said that the lock is no longer held by this lease.
            NotOwner: the lease was released, or the caller is a child after `fork`.
        """
        if self.lost:
            self._lose()
            raise LeaseLost(
                f"The lease of lock {self.name!r} is lost, and another holder may have the lock. Stop writing, and "
                "abandon or undo the work under this lock."
            )
        if self._state is _State.RELEASED:
            raise NotOwner(f"The lease of lock {self.name!r} was already released. Acquire the lock again.")

    def extend(self, ttl: float | None = None) -> None:
        """Keep the lock for `ttl` seconds from now. Never shortens the remaining time.

        Args:
            ttl: seconds; None for the lease's own TTL.

        Raises:
            LeaseLost: the lease was lost, or this call found that it was.
            NotOwner: the lease was released, or the caller is a child after `fork`.
            LockUnavailable: the server could not be reached, did not answer, or refused the request. The lease stays
                valid for `remaining()` seconds; try again.
            TypeError: `ttl` is neither an `int` nor a `float`.
            ValueError: `ttl` is not longer than the drift allowance, is longer than a million seconds, or is infinite
                although the lock expires. An `EtcdLock` or a `ZooKeeperLock` also refuses more than its own TTL.
        """
        self.check()
        seconds = self.ttl if ttl is None else ttl
        require_seconds("ttl", seconds)
        if not self._validity(seconds) > 0:
            raise ValueError(f"ttl must be longer than the drift allowance, not {seconds!r}")
        if seconds == math.inf > self.ttl:
            raise ValueError("ttl must be finite: a crashed holder would keep the lock for ever")
        started = self._clock()
        if self._lock._extend(self, seconds):
            self._prolong(started, seconds)
        else:
            self._lose()
        self.check()

    def release(self) -> bool:
        """Give the lock back.

        The release of a lost lease is also sent to the server. If the server still keeps the grant, this ends the grant
        before its TTL is over.

        Returns:
            True if the lease still held the lock; False if it was lost or already released.

        Raises:
            LockUnavailable: the server could not be reached, did not answer, or refused the request. Call `release`
                again. If the first request took effect and only its answer was lost, the next call still returns True.
                The same holds after any other exception during the request, such as KeyboardInterrupt.
            NotOwner: the caller is a child after `fork`.
        """
        if self.lost:
            self._lose()
        with self._mutex:
            if self._answered:
                return False
            still_held = self._state is not _State.LOST
            if still_held:
                self._state = _State.RELEASED
        try:
            found = self._lock._release(self)
        except BaseException:  # also KeyboardInterrupt: then the answer is not read
            self._unanswered = True
            raise
        with self._mutex:
            first_answer = not self._answered
            self._answered = True
        # If this request found no grant, but an earlier release request got no answer, then the earlier request has
        # ended the grant, which was still valid.
        return still_held and (found or (self._unanswered and first_answer))

    def _require_own_process(self) -> None:
        if self._pid != os.getpid():
            raise NotOwner(
                f"The lease of lock {self.name!r} belongs to process {self._pid}, the parent of this one, which still "
                "holds it. Acquire the lock in this process."
            )

    def _ended(self) -> bool:
        """Return whether the lifetime is over. Subclasses add other ends, such as a closed connection.

        An implementation must be quick and send nothing to the server. After its first True, it must always return
        True.
        """
        return self._clock() >= self._deadline

    def _prolong(self, started: float, ttl: float) -> None:
        """Record that the server keeps the lock for `ttl` seconds from `started`.

        If the lease has ended before the answer of the server arrived, it is lost.
        """
        with self._mutex:
            if self._state is _State.HELD and not self._ended():
                self._deadline = max(self._deadline, started + self._validity(ttl))
                return
        self._lose()

    def _lose(self) -> None:
        """Mark the lease as lost. The first time, log a warning and call `on_lost`."""
        if not self._mark_lost():
            return
        logger.warning("The lease of lock %r was lost (token %s, fence %s).", self.name, self.token, self.fence)
        if self._on_lost is not None:
            try:
                self._on_lost(self)
            except Exception:
                logger.exception("The on_lost callback of lock %r failed.", self.name)

    def _mark_lost(self) -> bool:
        """Change the state from held to lost, and return whether this call did so."""
        with self._mutex:
            if self._state is not _State.HELD:
                return False
            self._state = _State.LOST
            return True
