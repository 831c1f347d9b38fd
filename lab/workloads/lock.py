"""Clients that sell from a counter in Redis by GET and SET: only the lock keeps them from overwriting each other."""

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

ONE_HOLDER_IS_NOT_ENOUGH = ("fence", "fence-on-write-only")
"""Rungs on which two clients may hold the lock at the same time: these rungs protect the write, not the block."""

LATE = "A late client"
"""The client that tries the lock after all others have ended."""
LATE_TTL = 0.1 * TTL
"""Seconds: far less than for which a dead waiter counts as alive."""


class LockWorkload(Workload):
    """Each client takes the lock, sells one unit of the counter, and releases it."""

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
        """Run one client, and once more after each fault that made the lock unavailable. Return its answer."""
        attempts = 0
        while True:
            try:
                return work()
            except LockUnavailable:
                # Raised on entry only: the server has gone, or has answered after the TTL. The message says to try
                # again, and each fault may cause it once more.
                attempts += 1
                if attempts > 1 + self.history.faults:
                    raise

    def make_lock(self, client: Any) -> Lock:
        """Make the rung's own lock for one client."""
        rung = cast("type[LockRung]", self.entry.code)
        return rung(client, "stock", ttl=TTL, sleep=sleep, clock=self.sandbox.clock)

    def work(self, name: str, client: Any, lock: Lock) -> str:
        """Run one client, and return its answer."""
        return sell(client, lock, self.inside(name))

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Count the client as inside during the `with` block: from the grant to the end of its work."""
        self.history.enter(name)
        yield
        self.history.leave(name)


class SellWorkload(LockWorkload):
    """Clients that use the rung's own way of selling."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        return SOLD if cast("LockRung", lock).sell(STOCK) else "sold out"


class RenewedWorkload(LockWorkload):
    """Clients of a rung that has a watchdog of its own, which renews when the schedule says so."""

    def prepare(self) -> Mapping[str, Job]:
        IN_THE_RUNGS.enter(self)
        return super().prepare()

    def clean_up(self) -> None:
        IN_THE_RUNGS.leave(self)


class RedisLockWorkload(LockWorkload):
    """Clients of `RedisLock`. Once they are done or have crashed, another one finds the lock free."""

    def make_lock(self, client: Any) -> Lock:
        return RedisLock(client, "stock", ttl=TTL, clock=self.sandbox.clock)

    def finish(self, answers: Mapping[str, str]) -> Mapping[str, str]:
        self.sandbox.pass_time(1.01 * TTL)  # the grant of a dead holder is over, and so is an offer to dead waiters
        for _ in range(2):  # if nobody has offered the lock to the dead waiters, the first try does
            lock = RedisLock(self.sandbox.redis, "stock", ttl=LATE_TTL, renew=False)
            lease = lock.acquire(blocking=False)
            if lease is not None:
                lease.release()
                return answers
            self.sandbox.pass_time(1.01 * LATE_TTL)
        return {**answers, LATE: "the lock is refused although all others are gone"}


class FenceWorkload(RedisLockWorkload):
    """Clients of a store that checks each client's fence."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        store: FenceOnWriteOnly = self.entry.code(client, STOCK)
        with lock.hold() as lease, self.inside(name):
            fence = cast("int", lease.fence)
            left = store.read(fence)
            written = left is not None and store.write(fence, left - 1)
        return SOLD if written else OVERTAKEN


class NestedWorkload(LockWorkload):
    """Clients that take the lock, call a function that takes it too, and go on."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        with lock.hold(), self.inside(name):
            with lock.hold():
                pass
            client.set(STOCK, int(client.get(STOCK)) - 1)
        return SOLD


class RenewedNestedWorkload(RenewedWorkload, NestedWorkload):
    """Clients of a re-entrant rung that has a watchdog of its own."""


class ReentrantWorkload(NestedWorkload):
    """Clients of a `ReentrantLock` over a `RedisLock`."""

    def make_lock(self, client: Any) -> Lock:
        return ReentrantLock(RedisLock(client, "stock", ttl=TTL, clock=self.sandbox.clock))


class MergeWorkload(LockWorkload):
    """Sources that each add a part to one record."""

    def prepare(self) -> Mapping[str, Job]:
        self.sandbox.redis.set(RECORD, json.dumps({"0": ""}))
        return {name: self.job(name) for name in self.names}

    def make_lock(self, client: Any) -> Any:
        return None

    def work(self, name: str, client: Any, lock: Lock) -> str:
        MergeWithoutALock.merge(client, RECORD, name, "")
        return MERGED
