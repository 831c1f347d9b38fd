"""Clients that sell from a counter in Redis by GET and SET. Only the lock protects them from each other's writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from lab.checkers.counter import MERGED, OVERTAKEN, RECORD, SOLD, STOCK, UNITS
from lab.explorer.terms import Job
from lab.ladder.locks import LockRung
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from lab.ladder.locks.merge_without_a_lock import MergeWithoutALock
from lab.sandbox.clock import TTL
from lab.sandbox.watchdogs import IN_THE_RUNGS
from lab.workloads.base import Workload, sleep
from lab.workloads.counter import sell
from locking import Lock, LockUnavailable, RedisLock, ReentrantLock

LATE = "A late client"
"""Name of the client that tries the lock after all others have ended."""
LATE_TTL = 0.1 * TTL
"""TTL of the late client's lock in seconds: much shorter than the time for which a dead waiter counts as alive."""


class LockWorkload(Workload):
    """Each client acquires the lock, sells one unit of the counter, and releases the lock."""

    def prepare(self) -> Mapping[str, Job]:
        self.sandbox.redis.set(STOCK, UNITS)
        return {name: self.job(name) for name in self.names}

    def job(self, name: str) -> Job:
        """Return the job of one client."""

        def job() -> str:
            client = self.sandbox.connect_thread(name).redis
            lock = self.make_lock(client)
            return self.tried_again(lambda: self.work(name, client, lock))

        return job

    def tried_again(self, work: Callable[[], str]) -> str:
        """Run one client and return its answer. Run it again after each fault that made the lock unavailable."""
        attempts = 0
        while True:
            try:
                return work()
            except LockUnavailable:
                # Only the acquire raises this error: the server was lost, or it answered after the TTL. The message of
                # the error says to try again. Allow one error for each fault, and one more.
                attempts += 1
                if attempts > 1 + self.history.faults:
                    raise

    def make_lock(self, client: Any) -> Lock:
        """Create the lock under test for one client."""
        rung = cast("type[LockRung]", self.entry.code)
        return rung(client, "stock", ttl=TTL, sleep=sleep, clock=self.sandbox.clock)

    def work(self, name: str, client: Any, lock: Lock) -> str:
        """Run one client, and return its answer."""
        return sell(client, lock, self.inside(name))

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Record that the client is in the critical section during the `with` block."""
        self.history.enter(name)
        yield
        self.history.leave(name)


class SellWorkload(LockWorkload):
    """Clients that call the lock's own method `sell`."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        return SOLD if cast("LockRung", lock).sell(STOCK) else "sold out"


class RenewedWorkload(LockWorkload):
    """Clients of a lock with its own watchdog, which renews only when the schedule says so."""

    def prepare(self) -> Mapping[str, Job]:
        IN_THE_RUNGS.enter(self)
        return super().prepare()

    def clean_up(self) -> None:
        IN_THE_RUNGS.leave(self)


class RedisLockWorkload(LockWorkload):
    """Clients of `RedisLock`. After they are done or have crashed, one more client must get the lock."""

    def make_lock(self, client: Any) -> Lock:
        return RedisLock(client, "stock", ttl=TTL, clock=self.sandbox.clock)

    def finish(self, answers: Mapping[str, str]) -> Mapping[str, str]:
        # Let the grants of dead clients expire, and also the offers of the lock to dead waiters.
        self.sandbox.pass_time(1.01 * TTL)
        # The first attempt may still offer the lock to dead waiters. The second attempt must succeed.
        for _ in range(2):
            lock = RedisLock(self.sandbox.redis, "stock", ttl=LATE_TTL, renew=False)
            lease = lock.acquire(blocking=False)
            if lease is not None:
                lease.release()
                return answers
            self.sandbox.pass_time(1.01 * LATE_TTL)
        return {**answers, LATE: "the lock is refused, although no other client holds or asks for it"}


class FenceWorkload(RedisLockWorkload):
    """Clients of a store that checks the fence of each client."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        store: FenceOnWriteOnly = self.entry.code(client, STOCK)
        with lock.hold() as lease, self.inside(name):
            fence = cast("int", lease.fence)
            left = store.read(fence)
            written = left is not None and store.write(fence, left - 1)
        return SOLD if written else OVERTAKEN


class NestedWorkload(LockWorkload):
    """Clients that acquire the lock, call a function that acquires it too, and go on."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        with lock.hold(), self.inside(name):
            with lock.hold():
                pass
            client.set(STOCK, int(client.get(STOCK)) - 1)
        return SOLD


class RenewedNestedWorkload(RenewedWorkload, NestedWorkload):
    """Nested clients of a re-entrant lock with its own watchdog."""


class ReentrantWorkload(NestedWorkload):
    """Nested clients of a `ReentrantLock` around a `RedisLock`."""

    def make_lock(self, client: Any) -> Lock:
        return ReentrantLock(RedisLock(client, "stock", ttl=TTL, clock=self.sandbox.clock))


class MergeWorkload(LockWorkload):
    """Clients, called sources, that each add a part to one record."""

    def prepare(self) -> Mapping[str, Job]:
        self.sandbox.redis.set(RECORD, json.dumps({"0": ""}))
        return {name: self.job(name) for name in self.names}

    def make_lock(self, client: Any) -> Any:
        return None

    def work(self, name: str, client: Any, lock: Lock) -> str:
        MergeWithoutALock.merge(client, RECORD, name, "")
        return MERGED
