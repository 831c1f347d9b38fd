"""Base classes of the lock rungs. A rung is one step of the ladder: here a lock with a claim, flawed or sound.

A `LockRung` implements two methods: `take` acquires the lock and `free` releases it. The lesson is how these two
methods differ between two neighbouring rungs.
"""

from __future__ import annotations

import math
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from lab.explorer.terms import Fault, Invariant
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.redis.connection import NO_ANSWER, milliseconds
from locking.renewal import watchdog

if TYPE_CHECKING:
    from redis import Redis

POLL = 0.01
"""Seconds for which a waiter sleeps between two attempts to take the lock."""

ON_A_SERVER = Capabilities(across_processes=True, across_machines=True, survives_holder_crash=True)
WITH_A_TTL = Capabilities(across_processes=True, across_machines=True, survives_holder_crash=True, expires=True)

COMPARE_AND_DELETE = """
-- KEYS: the lock. ARGV: the owner. Returns 1 if the lock was the owner's and is now free, else 0.
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
"""


class Rung:
    """A claim about a piece of code. Schedules of clients' steps and faults can check the claim.

    Attributes:
        slug: name in addresses and file names.
        title: name for readers.
        flaw: the mistake in the code, in one sentence. None for a sound rung.
        breaks: the invariant that the witness breaks; None for a sound rung. A witness is a schedule that shows the
            flaw.
        broken_by: the fault that the witness needs. None if the order of the clients' steps is enough.
        clients: number of clients that the witness needs.
        preemptions: maximum number of preemptions in the witness. A preemption stops a client that could go on.
        survives: the faults that do not break the rung if only one of them happens:
            `late release`: the TTL runs out after the work and before the release.
            `tick`: the watchdog begins to renew, and the clients go on before its command reaches the server.
            `expiry`: the TTL runs out while the holder works. A lock with a watchdog is renewed in time.
            `pause`: a holder and its watchdog stand still for longer than the TTL.
            `crash`: the holder's process dies, before or after any of its commands.
            `restart`: one server restarts with the data that it has on disk.
            `failover`: one server is lost, and its replica takes its place.
            `clock jump`: the system time of one server jumps ahead by more than the TTL.
        fixed_by: slug of the rung that survives the witness of this rung.
        source: numbers of the articles in which the code is found, or another source.
    """

    slug: ClassVar[str]
    title: ClassVar[str]
    flaw: ClassVar[str | None]
    breaks: ClassVar[Invariant | None]
    broken_by: ClassVar[Fault | None] = None
    clients: ClassVar[int] = 2
    preemptions: ClassVar[int] = 2
    survives: ClassVar[frozenset[Fault]] = frozenset()
    fixed_by: ClassVar[str | None]
    source: ClassVar[str]


class FaultRung(Rung):
    """A claim that one fault breaks a sound lock. `broken_by` names the fault.

    Attributes:
        lock: the lock, which is sound and may be used in production.
    """

    lock: ClassVar[type[Lock]]


class LockRung(Rung, Lock):
    """Base class of locks that implement only `take` and `free`. Their waiters poll, unless a subclass changes that.

    `capabilities` lists what users expect, even if it is not true.

    Args:
        client: a client that returns bytes, as redis-py's does by default. The counter is on the same server.
        name: name of the lock.
        ttl: lifetime of a grant in seconds. Not used if `capabilities` say that grants do not expire.
        on_lost: called once, with the lease, when the holder notices that its lease has expired.
        sleep: function that sleeps for a number of seconds.
        clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        client: Redis,
        name: str,
        *,
        ttl: float = 10.0,
        on_lost: Callable[[Lease], object] | None = None,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=ttl if self.capabilities.expires else math.inf, on_lost=on_lost, clock=clock)
        self.client: Any = client
        self.key = f"rung:{name}"
        self._sleep = sleep

    @property
    def milliseconds(self) -> int:
        """The TTL in milliseconds, the unit that the server uses."""
        return milliseconds(self.ttl)

    @abstractmethod
    def take(self, owner: str) -> bool:
        """Try once to acquire the lock. Return whether it was granted."""

    @abstractmethod
    def free(self, owner: str) -> bool:
        """Release the lock. Return whether there was a lock to release."""

    def owner(self) -> str:
        """Return the text that identifies this owner. It should differ from that of every other owner."""
        return secrets.token_hex(16)

    def sell(self, stock: str, timeout: float | None = None) -> bool:
        """Acquire the lock and sell one unit. Return whether the customer is told that they have bought.

        Args:
            stock: key of the counter, which holds a whole number.
            timeout: longest time to wait for the lock, in seconds. None for no limit.

        Raises:
            LockTimeout: the lock was not granted in time, and no unit was sold.
            LockUnavailable: the server of the lock did not answer.
        """
        with self.hold(timeout):
            return self._sell_one(stock)

    def _sell_one(self, stock: str) -> bool:
        left = int(self.client.get(stock) or 0)
        if left <= 0:
            return False
        self.client.set(stock, left - 1)
        return True

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`."""
        return self._poll(self.owner(), self._clock() + wait_timeout(blocking, timeout))

    def _poll(self, owner: str, deadline: float) -> Lease | None:
        while True:
            started = self._clock()
            with self._errors_as_unavailable():
                if self.take(owner):
                    return self._grant(owner, started)
            left = deadline - self._clock()
            if left <= 0:
                return None
            self._nap(left)

    def _nap(self, left: float) -> None:
        """Sleep until the next poll, but no longer than `left` seconds."""
        self._sleep(min(POLL, left))

    def _grant(self, owner: str, started: float) -> Lease:
        return Lease(self, owner, started=started, ttl=self.ttl, clock=self._clock, on_lost=self._on_lost)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        if not self.capabilities.expires:
            return True
        with self._errors_as_unavailable():
            return bool(self.client.pexpire(self.key, milliseconds(ttl)))

    def _release(self, lease: Lease) -> bool:
        with self._errors_as_unavailable():
            return self.free(lease.token)

    @contextmanager
    def _errors_as_unavailable(self) -> Iterator[None]:
        try:
            yield
        except NO_ANSWER as error:
            raise LockUnavailable(f"The server of lock {self.name!r} did not answer ({error}). Try again.") from error


class RenewedRung(LockRung):
    """A lock rung with a watchdog. The watchdog calls `prolong` for each lease after every third of the TTL."""

    capabilities = replace(WITH_A_TTL, renews=True)

    @abstractmethod
    def prolong(self, owner: str) -> bool:
        """Extend the lock by its TTL. Return whether the lock still belonged to the owner."""

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease. See `Renewer.renew`. The time limit is the client's own, not `seconds`."""
        return [self._answer(lease.token) for lease in leases]

    def _answer(self, owner: str) -> bool | None:
        try:
            return self.prolong(owner)
        except NO_ANSWER:
            return None

    def close(self) -> None:
        """Do nothing: the watchdog uses the client's connections, which stay open."""

    def _grant(self, owner: str, started: float) -> Lease:
        lease = super()._grant(owner, started)
        watchdog.watch(lease, self)
        return lease

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return super()._release(lease)
