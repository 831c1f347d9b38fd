"""Watchdog: one thread per process that renews leases, and reports those whose lifetime is over.

The thread starts with the first lease. It ends when it wakes up and finds no lease. It references leases weakly: a
lease that the application has dropped is no longer renewed, so its lock is free again after the TTL.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from locking._once import Once

if TYPE_CHECKING:
    from locking.lease import Lease

logger = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
"""A lease is renewed after a third of its TTL, which leaves two thirds for further attempts."""

RETRY_SECONDS = 0.05
"""Shortest pause between two attempts to renew a lease, in seconds."""

LOOK_SECONDS = 0.25
"""Seconds between two checks of a lease without a TTL. Such a lease ends with its connection."""


class Renewer(Protocol):
    """Extends the leases of locks that share a connection or a client.

    Renewers that compare equal can extend each other's leases, so the watchdog uses one of them for all these leases.
    A renewer is used by one thread at a time.
    """

    def __hash__(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease by its TTL, in one round trip to each server.

        Args:
            leases: the leases to extend.
            seconds: total time limit, even if the server hangs.

        Returns:
            For each lease: True if it still held the lock, False if not, None if the server did not answer.
        """

    def close(self) -> None:
        """Close the connections. The renewer may be used again."""


@dataclass
class _Watched:
    token: str
    lease: weakref.ref[Lease]
    renewer: Renewer | None
    due: float
    """When to renew the lease next, on the lease's clock; `math.inf` if it is only watched."""


class Watchdog:
    """Renews and watches the leases of one process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all leases. A forked child calls this, because inherited leases belong to the parent."""
        # Re-entrant: while a thread holds it, the garbage collector may run a finalizer that releases a lease.
        self._make_condition = Once(lambda: threading.Condition(threading.RLock()))
        # Keeps a caller of `tick` from using a renewer's connection at the same time as the watchdog's thread.
        self._make_ticking = Once(lambda: threading.RLock())
        self._watched: dict[str, _Watched] = {}
        self._renewers: dict[Renewer, Renewer] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    @property
    def _condition(self) -> threading.Condition:
        return self._make_condition()

    @property
    def _ticking(self) -> threading.RLock:
        return self._make_ticking()

    def watch(self, lease: Lease, renewer: Renewer | None) -> None:
        """Renew `lease` until it is forgotten, lost or collected, and call its `on_lost` when its lifetime is over.

        Args:
            lease: a lease that is held.
            renewer: extends the lease; None to only watch it.
        """
        now = lease._clock()
        # If the grant was slow, less time than the usual pause may be left. Then renew after half of the time that is
        # left, so that there is time for a second attempt.
        left = lease._deadline - now
        pause = LOOK_SECONDS if lease.ttl == math.inf else min(lease.ttl / RENEWALS_PER_TTL, left / 2)
        due = math.inf if renewer is None else now + pause
        wake = time.monotonic() + pause
        with self._condition:
            self._watched[lease.token] = _Watched(lease.token, weakref.ref(lease), renewer, due)
            self._wake_by(wake)

    def forget(self, lease: Lease) -> None:
        """Stop renewing and watching `lease`."""
        with self._condition:
            self._watched.pop(lease.token, None)

    def tick(self) -> float:
        """Report the leases whose lifetime is over, and renew those that are due.

        Returns:
            Seconds until the next tick is due; `math.inf` if no lease is left.
        """
        with self._ticking:
            return self._tick()

    def _wake_by(self, moment: float) -> None:
        """Make sure that the thread runs, and wakes up at `moment` or earlier."""
        if self._thread is None or not self._thread.is_alive():
            self._wakes_at = moment
            self._thread = threading.Thread(target=self._run, name="lock-renewal", daemon=True)
            self._thread.start()
        elif moment < self._wakes_at:
            self._wakes_at = moment
            self._condition.notify()

    def _tick(self) -> float:
        with self._condition:
            self._wakes_at = math.inf
            watched = list(self._watched.values())
        held = self._held(watched)
        for renewer, batch in self._batches(held):
            # Limit a renewal to half of the shortest remaining time.
            # If a server hangs, there is then time to report lost leases, renew the others, and try a new connection.
            seconds = min((lease.remaining() for lease, _ in held if lease.remaining() > 0), default=0.0) / 2
            self._renew(renewer, batch, seconds)
        self._close_renewers(keep={entry.renewer for _, entry in held})
        return min(
            (
                LOOK_SECONDS if lease.ttl == math.inf else min(lease.remaining(), entry.due - lease._clock())
                for lease, entry in self._held(watched)
            ),
            default=math.inf,
        )

    def _held(self, watched: list[_Watched]) -> list[tuple[Lease, _Watched]]:
        """Return the leases that are still held. Drop collected and released leases, and report lost leases."""
        held = []
        for entry in watched:
            lease = entry.lease()
            if lease is not None and lease.remaining() > 0:
                held.append((lease, entry))
                continue
            if lease is not None:
                lease._lose()
            with self._condition:
                self._watched.pop(entry.token, None)
        return held

    def _batches(self, held: list[tuple[Lease, _Watched]]) -> list[tuple[Renewer, list[tuple[Lease, _Watched]]]]:
        """Return each renewer with a lease that is due, together with the leases to renew in one batch."""
        batches: dict[Renewer, list[tuple[Lease, _Watched]]] = {}
        due: set[Renewer] = set()
        for lease, entry in held:
            if entry.renewer is None:
                continue
            early = entry.due - lease._clock()
            if early <= 0:
                due.add(entry.renewer)
            # Leases that are nearly due join the batch, so that leases granted one by one share their round trips.
            if early <= lease.ttl / RENEWALS_PER_TTL / 2:
                batches.setdefault(entry.renewer, []).append((lease, entry))
        return [(self._renewers.setdefault(renewer, renewer), batches[renewer]) for renewer in due]

    def _renew(self, renewer: Renewer, batch: list[tuple[Lease, _Watched]], seconds: float) -> None:
        started = [lease._clock() for lease, _ in batch]
        answers: Sequence[bool | None]
        try:
            answers = renewer.renew([lease for lease, _ in batch], seconds)
        except Exception:
            # If one renewer has a bug, the leases of the others must still be renewed.
            logger.exception("%d leases were not renewed; the watchdog tries again.", len(batch))
            answers = [None] * len(batch)
        for (lease, entry), start, still_held in zip(batch, started, answers, strict=True):
            if still_held is None:
                entry.due = lease._clock() + max(RETRY_SECONDS, lease.remaining() / 4)
            elif still_held:
                lease._prolong(start, lease.ttl)
                entry.due = start + lease.ttl / RENEWALS_PER_TTL
            else:
                lease._lose()

    def _close_renewers(self, keep: set[Renewer | None]) -> None:
        for renewer in [renewer for renewer in self._renewers if renewer not in keep]:
            self._renewers.pop(renewer).close()

    def _run(self) -> None:
        while self._sleep() or not self._ends():
            try:
                pause = self.tick()
            except BaseException:
                # Holders rely on this thread, so no fault of a server or of an `on_lost` callback may end it.
                logger.exception("Renewing leases failed; the watchdog tries again.")
                pause = RETRY_SECONDS
            with self._condition:
                self._wakes_at = min(self._wakes_at, time.monotonic() + pause)

    def _sleep(self) -> bool:
        """Sleep until a lease may be due, and return whether any lease is left.

        A release does not wake the thread: many leases are granted and released during one sleep.
        """
        with self._condition:
            while self._wakes_at < math.inf and (pause := self._wakes_at - time.monotonic()) > 0:
                self._condition.wait(min(pause, threading.TIMEOUT_MAX))
            return bool(self._watched)

    def _ends(self) -> bool:
        """If there is still no lease, close all connections and return True, so that the thread ends.

        The next lease starts a new thread.
        """
        with self._ticking, self._condition:
            if self._watched:
                return False
            self._close_renewers(keep=set())
            self._thread = None
            return True


watchdog = Watchdog()
"""The watchdog of this process. A forked child starts with an empty watchdog."""

os.register_at_fork(after_in_child=watchdog.reset)
