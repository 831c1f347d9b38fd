"""The watchdog: one thread of a process that extends every lease that asked, and tells holders whose time is over.

It is started with the first lease and ends by itself when it wakes and finds none. It holds leases weakly: one that
nobody refers to any more is not renewed, so a forgotten lease frees its lock after the TTL.
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

if TYPE_CHECKING:
    from locking.lease import Lease

logger = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
"""A lease is renewed when a third of its TTL is over, so that two thirds are left for further tries."""

RETRY_SECONDS = 0.05
"""The shortest pause between two tries to renew a lease, in seconds."""


LOOK_SECONDS = 0.25
"""How often to look at a lease that does not end by time, but with a connection, say."""


class Renewer(Protocol):
    """How the leases of one server are extended. Equal renewers serve the same server, so one of them does it for all.

    A renewer is used by one thread at a time.
    """

    def __hash__(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease by its TTL, in one round trip, in `seconds` at most, whatever the server does.

        Returns:
            For each lease whether the lock was still its own, or None when there was no answer.
        """

    def close(self) -> None:
        """Let go of connections. The renewer may be used again."""


@dataclass
class _Watched:
    token: str
    lease: weakref.ref[Lease]
    renewer: Renewer | None
    due: float
    """When to renew it next, by the lease's own clock; `math.inf`: never, it is only watched for its end."""


class Watchdog:
    """Renews and watches the leases of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: what a forked child inherits is its parent's."""
        # Re-entrant, since the garbage collector may run a finalizer that releases a lease while we are in here.
        self._condition = threading.Condition(threading.RLock())
        # Whoever else calls `tick` must not use a renewer's connection while the thread does.
        self._ticking = threading.RLock()
        self._watched: dict[str, _Watched] = {}
        self._renewers: dict[Renewer, Renewer] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    def watch(self, lease: Lease, renewer: Renewer | None) -> None:
        """Renew `lease` until it is forgotten, lost or collected, and tell its holder when its time is over.

        Args:
            lease: a lease that is held.
            renewer: extends it; None: it is not renewed, only watched.
        """
        now = lease._clock()
        # One that was long in coming may have less than a third left, and half of that leaves time to try again.
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
        """Do what is due now: tell holders whose time is over, renew the leases whose turn it is.

        Returns:
            Seconds until there is something to do again; `math.inf` when no lease is left.
        """
        with self._ticking:
            return self._tick()

    def _wake_by(self, moment: float) -> None:
        """See that the thread runs, and that it wakes by then."""
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
        for renewer, turn in self._turns(held):
            # Half of the least time left, so that a server that hangs delays nobody's signal, and leaves time to renew
            # the leases of the others and to try again on a new connection.
            seconds = min((lease.remaining() for lease, _ in held if lease.remaining() > 0), default=0.0) / 2
            self._renew(renewer, turn, seconds)
        self._close_renewers(keep={entry.renewer for _, entry in held})
        return min(
            (
                LOOK_SECONDS if lease.ttl == math.inf else min(lease.remaining(), entry.due - lease._clock())
                for lease, entry in self._held(watched)
            ),
            default=math.inf,
        )

    def _held(self, watched: list[_Watched]) -> list[tuple[Lease, _Watched]]:
        """Return those that are still held, and drop the others: collected, released, or lost, which it says."""
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

    def _turns(self, held: list[tuple[Lease, _Watched]]) -> list[tuple[Renewer, list[tuple[Lease, _Watched]]]]:
        """Return the renewers that have something to do now, and the leases that each of them renews."""
        turns: dict[Renewer, list[tuple[Lease, _Watched]]] = {}
        due: set[Renewer] = set()
        for lease, entry in held:
            if entry.renewer is None:
                continue
            early = entry.due - lease._clock()
            if early <= 0:
                due.add(entry.renewer)
            # Those whose turn is near go along, so that leases that were granted one by one end up in one batch.
            if early <= lease.ttl / RENEWALS_PER_TTL / 2:
                turns.setdefault(entry.renewer, []).append((lease, entry))
        return [(self._renewers.setdefault(renewer, renewer), turns[renewer]) for renewer in due]

    def _renew(self, renewer: Renewer, turn: list[tuple[Lease, _Watched]], seconds: float) -> None:
        started = [lease._clock() for lease, _ in turn]
        answers: Sequence[bool | None]
        try:
            answers = renewer.renew([lease for lease, _ in turn], seconds)
        except Exception:
            # A fault of one renewer must not cost the leases of the others.
            logger.exception("%d leases were not renewed; it is tried again.", len(turn))
            answers = [None] * len(turn)
        for (lease, entry), start, ours in zip(turn, started, answers, strict=True):
            if ours is None:
                entry.due = lease._clock() + max(RETRY_SECONDS, lease.remaining() / 4)
            elif ours:
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
                # This thread must not end while somebody relies on it, whatever a server or an `on_lost` does.
                logger.exception("Renewing leases failed; it is tried again.")
                pause = RETRY_SECONDS
            with self._condition:
                self._wakes_at = min(self._wakes_at, time.monotonic() + pause)

    def _sleep(self) -> bool:
        """Sleep until there may be something to do. Returns False when there is no lease any more.

        It looks when it wakes and not before, so a lease that comes and goes in between never troubles the thread.
        """
        with self._condition:
            while self._wakes_at < math.inf and (pause := self._wakes_at - time.monotonic()) > 0:
                self._condition.wait(min(pause, threading.TIMEOUT_MAX))
            return bool(self._watched)

    def _ends(self) -> bool:
        """Whether there is still no lease. Then every connection is let go of, and the next lease starts a thread."""
        with self._ticking, self._condition:
            if self._watched:
                return False
            self._close_renewers(keep=set())
            self._thread = None
            return True


watchdog = Watchdog()
"""The watchdog of this process. A forked child starts with an empty one."""

os.register_at_fork(after_in_child=watchdog.reset)
