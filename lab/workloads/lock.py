"""Clients who sell from a counter in Redis by GET and SET: only the lock stands between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from lab.explorer.actor import CRASHED, Actor, current_actor
from lab.ladder.locks import LockRung
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from lab.ladder.locks.merge_without_a_lock import MergeWithoutALock
from lab.workloads.base import TTL, Broken, Trial
from lab.workloads.counter import SOLD, STOCK, UNITS, sell
from locking import Lock, LockUnavailable, RedisLock, ReentrantLock

ONE_HOLDER_IS_NOT_ENOUGH = ("fence", "fence-on-write-only")
"""Rungs that let two work at the same time: what they protect is what is written."""


class LockTrial(Trial):
    """Each client takes the lock, sells one unit of the counter, and releases it."""

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        self.stage.redis.set(STOCK, UNITS)
        return {name: self._job(name) for name in self.names}

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        sold = sum(answer == SOLD for answer in answers.values())
        gone = UNITS - int(self.stage.redis.get(STOCK))
        # Who crashed may have sold a unit, or not.
        broken: list[Broken] = []
        if not sold <= gone <= sold + len(self.crashed):
            text = f"{sold} were told that they have bought, and {gone} of {UNITS} units are gone."
            broken.append(("conserved", text))
        return [*broken, *self.errors(answers)]

    def errors(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        """Those who were not sold a unit, where everybody should wait for as long as it takes and then be."""
        failed = [name for name, answer in answers.items() if answer not in (SOLD, CRASHED)]
        return [("progress", f"{' and '.join(failed)} could have bought, and got nothing.")] if failed else []

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        sold = sum(answer == SOLD for answer in answers.values())
        return {"received": UNITS, "left": int(self.stage.redis.get(STOCK)), "told yes": sold}

    def _job(self, name: str) -> Callable[[], str]:
        def job() -> str:
            client = self.stage.sit(name).redis
            lock = self.make_lock(client)
            tries = 0
            while True:
                try:
                    return self.work(name, client, lock)
                except LockUnavailable:
                    # Raised on entry only, and it says: try again. The server has gone, or answered after the TTL.
                    # Each event may bring that about once more.
                    tries += 1
                    if tries > 1 + self.events:
                        raise

        return job

    def make_lock(self, client: Any) -> Lock:
        """The lock of one client."""
        code = self.entry.code
        if issubclass(code, LockRung):
            return code(client, "stock", ttl=TTL, sleep=sleep, clock=self.stage.clock)
        return RedisLock(client, "stock", ttl=TTL, clock=self.stage.clock)

    def work(self, name: str, client: Any, lock: Lock) -> str:
        """What one client does, and what he is told."""
        return sell(client, lock, self.at_work(name))

    @contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        """Somebody is inside, from the grant until his work is done; his release is no part of it."""
        self.enters(name)
        yield
        self.leaves(name)


class SellTrial(LockTrial):
    """Clients who use the rung's own way of selling."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        return SOLD if cast("LockRung", lock).sell(STOCK) else "sold out"


class FenceTrial(LockTrial):
    """Clients whose store looks at the fence of each."""

    def enters(self, name: str) -> None:
        """Two may be inside: the store tells them apart."""
        self.inside.append(name)

    def errors(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        """The store may turn somebody away, but only when something has happened to him."""
        told = {name: SOLD if self.events and answer == "overtaken" else answer for name, answer in answers.items()}
        return super().errors(told)

    def work(self, name: str, client: Any, lock: Lock) -> str:
        store: FenceOnWriteOnly = self.entry.code(client, STOCK)
        with lock.hold() as lease, self.at_work(name):
            fence = cast("int", lease.fence)
            left = store.read(fence)
            written = left is not None and store.write(fence, left - 1)
        return SOLD if written else "overtaken"


class TwiceTrial(LockTrial):
    """Clients who take the lock, call a function that takes it too, and go on."""

    def make_lock(self, client: Any) -> Lock:
        lock = super().make_lock(client)
        return lock if isinstance(lock, LockRung) else ReentrantLock(lock)

    def work(self, name: str, client: Any, lock: Lock) -> str:
        with lock.hold(), self.at_work(name):
            with lock.hold():
                pass
            client.set(STOCK, int(client.get(STOCK)) - 1)
        return SOLD


class MergeTrial(LockTrial):
    """Sources that each add a part to one record."""

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        self.stage.redis.set("record", json.dumps({"0": ""}))
        return {name: self._job(name) for name in self.names}

    def make_lock(self, client: Any) -> Any:
        return None

    def work(self, name: str, client: Any, lock: Lock) -> str:
        MergeWithoutALock.merge(client, "record", name, "")
        return "merged"

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        lost = [name for name, answer in answers.items() if answer == "merged" and name not in self._parts()]
        return [("conserved", f"The part of {' and '.join(lost)} is not in the record.")] if lost else []

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        return {
            "merged": sum(answer == "merged" for answer in answers.values()),
            "in the record": len(self._parts()) - 1,
        }

    def _parts(self) -> Mapping[str, str]:
        found: Mapping[str, str] = json.loads(self.stage.redis.get("record"))
        return found


def sleep(seconds: float) -> None:
    """Let an actor sleep on the schedule's clock."""
    cast("Actor", current_actor()).sleep(seconds)
