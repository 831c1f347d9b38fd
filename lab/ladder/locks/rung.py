"""What the lock rungs share: what each says of itself, waiters that poll, and the counter that they protect.

A rung fills in two methods, `take` and `free`: how the lock is taken and how it is freed. The difference between those
of two neighbours is the lesson.
"""

from __future__ import annotations

import math
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from lab.explorer.terms import Fault, Invariant
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.redis.connection import NO_ANSWER, milliseconds

if TYPE_CHECKING:
    from redis import Redis

POLL = 0.01
"""Seconds that a waiter sleeps before it asks again."""

ON_A_SERVER = Capabilities(across_processes=True, across_machines=True, survives_holder_crash=True)
WITH_A_TTL = Capabilities(across_processes=True, across_machines=True, survives_holder_crash=True, expires=True)

COMPARE_AND_DELETE = """
-- KEYS: the lock. ARGV: the owner. Returns 1 when the lock was the owner's and is free now, else 0.
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
"""


class Rung:
    """A claim about a piece of code that a schedule can check.

    Attributes:
        slug: its name in addresses.
        title: its name for people.
        flaw: what is wrong with it, in one sentence; None for a sound one.
        breaks: the invariant that its schedule breaks; None for a sound one.
        broken_by: the event that it takes to break it; None: the steps of its clients are enough.
        clients: how many clients it takes.
        preemptions: how often one of them has to be stopped who could go on, at most.
        survives: the events that leave it in order. `late release`: its TTL is over when the work is done and before
            the release. `tick`: the holder's watchdog renews, and its command is on the way while others go on, and
            he too. `expiry`: its TTL is over while the holder works, and who has a watchdog is renewed. `pause`: a
            holder and all that renews for him stand still for longer than that. `crash`: the holder's process dies,
            before or after any of his commands. `restart`: one server starts again, with what it has on disk.
            `failover`: one server is gone, and its replica takes its place. `clock jump`: one server's time of day
            leaps ahead by more than the TTL.
        fixed_by: the slug of the rung that survives the schedule which breaks this one.
        source: the articles, by number, that it is found in.
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
    """A claim about a lock that you may ship: what it does not survive.

    Attributes:
        lock: the lock.
        event: what happens to its server, or to one of its servers.
    """

    lock: ClassVar[type[Lock]]
    event: ClassVar[Fault]


class LockRung(Rung, Lock):
    """A lock whose waiters poll. Its `capabilities` are what its users rely on, not what it keeps.

    Args:
        client: a client that answers in bytes, which is redis-py's default. It keeps the counter too.
        name: what is locked.
        ttl: seconds after which a grant is over, in the rungs that expire.
        on_lost: called once with the lease when it is noticed that its time is over.
        sleep: how a waiter lets a time in seconds pass.
        clock: monotonic seconds.
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
        super().__init__(name, ttl=ttl if self.capabilities.expires else math.inf)
        self.client: Any = client
        self.key = f"rung:{name}"
        self._on_lost = on_lost
        self._sleep = sleep
        self._clock = clock

    @property
    def milliseconds(self) -> int:
        """The TTL as the server counts it."""
        return milliseconds(self.ttl)

    @abstractmethod
    def take(self, owner: str) -> bool:
        """Ask once for the lock, and return whether it was granted."""

    @abstractmethod
    def free(self, owner: str) -> bool:
        """Free the lock, and return whether it was there to be freed."""

    def owner(self) -> str:
        """Return what tells the owner that asks now from every other."""
        return secrets.token_hex(16)

    def sell(self, stock: str, timeout: float | None = None) -> bool:
        """Take the lock, sell one unit of the counter at the key `stock`, and return what the buyer is told.

        Args:
            stock: a key with a whole number.
            timeout: seconds to wait for the lock at most; None: no limit.

        Raises:
            LockTimeout: not granted in time; nothing was sold.
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
        """See `Lock.acquire`."""
        return self._poll(self.owner(), self._clock() + wait_timeout(blocking, timeout))

    def _poll(self, owner: str, deadline: float) -> Lease | None:
        while True:
            started = self._clock()
            with self._answered():
                if self.take(owner):
                    return self._grant(owner, started)
            left = deadline - self._clock()
            if left <= 0:
                return None
            self._nap(left)

    def _nap(self, left: float) -> None:
        """Sleep as long as a waiter who polls does, and no longer than `left` seconds."""
        self._sleep(min(POLL, left))

    def _grant(self, owner: str, started: float) -> Lease:
        return Lease(self, owner, started=started, ttl=self.ttl, clock=self._clock, on_lost=self._on_lost)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        if not self.capabilities.expires:
            return True
        with self._answered():
            return bool(self.client.pexpire(self.key, milliseconds(ttl)))

    def _release(self, lease: Lease) -> bool:
        with self._answered():
            return self.free(lease.token)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except NO_ANSWER as error:
            raise LockUnavailable(f"The server of lock {self.name!r} did not answer ({error}). Try again.") from error
