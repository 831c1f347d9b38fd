"""Lease: what a lock hands out. It is held for a time, and it knows when that time is over.

A holder can be paused for longer than its lease (garbage collection, SIGSTOP, a busy host) and go on as if nothing had
happened. No lock can prevent that; the lease can only say so. So call `check()` before every step that matters, and let
the store that you write to refuse a `fence` lower than the highest one it has seen: the pause may come right after the
check, and while a whole machine is suspended its monotonic clock may stand still.

Source: M. Kleppmann, "How to do distributed locking", https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
"""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from locking.errors import LeaseLost, NotOwner

if TYPE_CHECKING:
    from locking.lock import Lock

logger = logging.getLogger(__name__)

DRIFT_FACTOR = 0.01
DRIFT_SECONDS = 0.002


def validity(ttl: float) -> float:
    """Return how long, in seconds, a holder may trust a lease of `ttl` seconds.

    It is shorter than the TTL by the drift allowance: the holder's clock and the server's need not run equally fast.

    Source: "Distributed Locks with Redis", https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """
    return ttl * (1 - DRIFT_FACTOR) - DRIFT_SECONDS


class _State(enum.Enum):
    HELD = enum.auto()
    LOST = enum.auto()
    RELEASED = enum.auto()


class Lease:
    """One grant of one lock.

    Any thread of the process that was granted the lease may use it: pass it on freely. In a child after `fork` every
    use raises `NotOwner`, because the parent still holds it.

    A lease is HELD until it is LOST or RELEASED, and never comes back from either. It is lost when its time is over by
    the local clock, whatever the server thinks, or when the server says that it is not ours. It is released from the
    first call of `release()` on, answered or not; from then on `lost` stays as it is and `on_lost` is not called.

    Locks make leases; nobody else needs to. What a lock has to remember of a grant besides, it keeps in a subclass.

    Args:
        lock: the lock that grants it, and that extends and releases it.
        token: what makes this grant different from every other one.
        started: when the granting request was about to be sent, in seconds on `clock`.
        ttl: how long the server keeps the grant unless it is extended, in seconds; `math.inf` for ever.
        fence: the fencing token of the grant, or None for a lock that gives none.
        on_lost: called once with the lease when it is lost, from whichever thread notices first. It must not block:
            in the watchdog's thread it would hold up every other renewal of the process.
        clock: monotonic seconds.
        validity: how long the holder may trust a grant of so many seconds, for a lock with its own drift allowance.
    """

    __slots__ = (
        "__weakref__",
        "_answered",
        "_clock",
        "_deadline",
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
        lock: Lock,
        token: str,
        *,
        started: float,
        ttl: float,
        clock: Callable[[], float],
        fence: int | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        validity: Callable[[float], float] = validity,
    ) -> None:
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
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Lease of {self.name!r}, fence {self.fence}, {self._state.name.lower()}>"

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._lock.name

    @property
    def lost(self) -> bool:
        """Whether the lease was lost before it was released.

        Raises:
            NotOwner: in a child after `fork`.
        """
        self._require_own_process()
        return self._state is _State.LOST or (self._state is _State.HELD and self._ended())

    def remaining(self) -> float:
        """Return for how many seconds more the lease is surely ours: 0.0 once it is lost or released.

        Counted from before the request was sent, on the local monotonic clock, less the drift allowance.

        Raises:
            NotOwner: in a child after `fork`.
        """
        self._require_own_process()
        if self._state is not _State.HELD or self._ended():
            return 0.0
        return max(0.0, self._deadline - self._clock())

    def check(self) -> None:
        """Return when the lease is surely ours at this moment, and raise otherwise. It asks no server.

        Raises:
            LeaseLost: the time is over, or the server said that the lock is not ours any more.
            NotOwner: the lease was released, or this is a child after `fork`.
        """
        if self.lost:
            self._lose()
            raise LeaseLost(
                f"The lease of lock {self.name!r} is lost: somebody else may hold it by now. Write nothing more, and "
                "abandon or undo what was begun."
            )
        if self._state is _State.RELEASED:
            raise NotOwner(f"The lease of lock {self.name!r} was released. Acquire the lock again.")

    def extend(self, ttl: float | None = None) -> None:
        """Keep the lock for `ttl` seconds from now. It never shortens what is left.

        Args:
            ttl: seconds; the lease's own TTL when None.

        Raises:
            LeaseLost: it was, or turned out to be, no longer ours.
            NotOwner: the lease was released, or this is a child after `fork`.
            LockUnavailable: no answer. The lease is held for as long as `remaining()` says; try again.
            ValueError: `ttl` is not a usable time.
        """
        self.check()
        seconds = self.ttl if ttl is None else ttl
        if not self._validity(seconds) > 0:
            raise ValueError(f"ttl must be longer than the drift allowance, not {seconds!r}")
        started = self._clock()
        if self._lock._extend(self, seconds):
            self._prolong(started, seconds)
        else:
            self._lose()
        self.check()

    def release(self) -> bool:
        """Give the lock back, whatever is left of it.

        A lost lease is released too, in case the server still keeps the lock for it, so that others need not wait.

        Returns:
            Whether the lock was still ours. False for a lease that was lost, and for one released before.

        Raises:
            LockUnavailable: no answer. Call again: only an answer makes the lease forget its token. When the first
                request did its work and its answer was lost, the next call still returns True. So it does after
                whatever else was raised while the answer was waited for, such as KeyboardInterrupt.
            NotOwner: in a child after `fork`.
        """
        if self.lost:
            self._lose()
        with self._mutex:
            if self._answered:
                return False
            ours = self._state is not _State.LOST
            if ours:
                self._state = _State.RELEASED
        try:
            found = self._lock._release(self)
        except BaseException:  # an interrupt too: nobody has read the answer
            self._unanswered = True
            raise
        with self._mutex:
            first_answer = not self._answered
            self._answered = True
        # Not found after a request without an answer: it was that request, sent in time, that freed the lock.
        return ours and (found or (self._unanswered and first_answer))

    def _require_own_process(self) -> None:
        if self._pid != os.getpid():
            raise NotOwner(
                f"The lease of lock {self.name!r} belongs to process {self._pid}, which forked this one and still "
                "holds it. Acquire the lock in this process."
            )

    def _ended(self) -> bool:
        """Whether the time is over. A lease that can end otherwise, with a connection say, looks at that too.

        It must be quick, ask no server, and never say False again once it has said True.
        """
        return self._clock() >= self._deadline

    def _prolong(self, started: float, ttl: float) -> None:
        """Note that the server keeps the lock for `ttl` seconds from `started`. An answer that comes too late loses."""
        with self._mutex:
            if self._state is _State.HELD and not self._ended():
                self._deadline = max(self._deadline, started + self._validity(ttl))
                return
        self._lose()

    def _lose(self) -> None:
        """Note that the lease is lost, and say so once."""
        with self._mutex:
            if self._state is not _State.HELD:
                return
            self._state = _State.LOST
        logger.warning("The lease of lock %r was lost (token %s, fence %s).", self.name, self.token, self.fence)
        if self._on_lost is not None:
            try:
                self._on_lost(self)
            except Exception:
                logger.exception("on_lost of lock %r failed.", self.name)
