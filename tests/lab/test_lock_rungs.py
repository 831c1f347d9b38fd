"""Properties of the lock rungs that no schedule shows. Flawed locks are negative controls of the lock tests.

test_rungs.py runs the schedules.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import redis as redis_py
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.ladder.locks import LOCKS, SOUND, LockRung
from lab.ladder.locks.dead_head import DeadHead
from lab.ladder.locks.owner_is_ip_pid_thread_time import OwnerIsIpPidThreadTime
from lab.ladder.locks.setnx import Setnx
from lab.ladder.locks.ttl_healed_by_waiters import TtlHealedByWaiters
from lab.ladder.locks.ttl_healed_in_one_script import TtlHealedInOneScript
from lab.ladder.locks.ttl_zero_prolongs import TtlZeroProlongs
from lab.ladder.locks.watch_release import WatchRelease
from locking import Lock, LockUnavailable, renewal
from servers.valkey import Valkey
from tests.locking.conformance import (
    LONG,
    AcrossProcessesConformance,
    ExpiresConformance,
    LockConformance,
    ReentrantConformance,
    RenewsConformance,
    only,
)
from tests.locking.conftest import valkey
from tests.locking.support import Clock, RedisCell, acquired, client_of

__all__ = ["valkey"]

IN_MEMORY = {"no-lock", "thread-lock", "process-lock"}
"""Rungs without a server."""


@pytest.fixture
def client(valkey: Valkey) -> Iterator[Redis]:
    client = client_of(valkey.url, os.getpid())
    client.flushall()
    yield client
    client_of.cache_clear()
    client.close()


# What leases and locks report


def test_a_lease_without_a_ttl_never_ends_and_a_buyer_is_told_when_sold_out(client: Redis) -> None:
    lease = acquired(Setnx(client, "x"))
    lease.extend(1.0)
    assert (lease.remaining(), client.pttl("rung:x")) == (math.inf, -1)
    client.set("stock", 1)
    assert [Setnx(client, "y").sell("stock") for _ in range(3)] == [True, False, False]
    assert client.get("stock") == b"0"


def test_owners_in_one_place_differ_only_by_the_clock(client: Redis) -> None:
    clock = Clock()
    lock = OwnerIsIpPidThreadTime(client, "x", clock=clock)
    owner = lock.owner()
    clock.now += 0.004
    assert lock.owner() == owner
    clock.now += 0.01
    assert lock.owner() != owner


def test_a_waiter_that_gives_up_leaves_the_line(client: Redis) -> None:
    lease = acquired(DeadHead(client, "x"))
    assert DeadHead(client, "x").acquire(blocking=False) is None
    lease.release()
    assert DeadHead(client, "x").acquire(blocking=False) is not None


@pytest.mark.parametrize(
    ("kind", "heals", "prolongs"),
    [(TtlHealedByWaiters, False, True), (TtlZeroProlongs, True, True), (TtlHealedInOneScript, True, False)],
)
def test_a_refused_client_changes_the_ttl(client: Redis, kind: type[LockRung], heals: bool, prolongs: bool) -> None:
    lock = kind(client, "x", ttl=LONG)
    client.set("rung:x", "locked")
    assert lock.acquire(blocking=False) is None
    assert (client.pttl("rung:x") > 0) is heals
    client.pexpire("rung:x", 450)
    assert lock.acquire(blocking=False) is None
    assert (client.pttl("rung:x") > 450) is prolongs


def test_a_release_is_retried_when_the_key_was_only_touched(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = acquired(WatchRelease(client, "x"))
    tries: list[bool] = []

    class Touched(redis_py.client.Pipeline):
        def multi(self) -> None:
            if not tries:
                client.pexpire("rung:x", 60_000)
            tries.append(True)
            super().multi()

    monkeypatch.setattr("redis.client.Pipeline", Touched)
    assert lease.release() is True
    assert len(tries) == 2
    assert not client.exists("rung:x")


@pytest.mark.parametrize(
    "kind", [kind for kind in LOCKS.values() if issubclass(kind, LockRung) and kind.slug not in IN_MEMORY]
)
def test_an_unreachable_server_is_an_error_of_the_package(client: Redis, kind: type[LockRung]) -> None:
    lock = kind(client, "x")
    lease = acquired(lock)
    lock.client = Redis(unix_socket_path="/nowhere", retry=Retry(NoBackoff(), 0))
    with pytest.raises(LockUnavailable):
        lock.acquire(blocking=False)
    with pytest.raises(LockUnavailable):
        lease.release()


# Negative controls of the lock tests: a flawed lock must fail some properties and pass the others.


@dataclass(frozen=True)
class RungRecipe:
    """Creates locks of a rung on the server at `url`."""

    url: str
    slug: str

    def __call__(self, name: str, **options: Any) -> LockRung:
        options.pop("renew", None)
        kind: Any = {**LOCKS, **SOUND}[self.slug]
        lock: LockRung = kind(self.client, name, **options)
        return lock

    def cell(self, name: str) -> RedisCell:
        return RedisCell(self.client, f"cell:{name}")

    @property
    def client(self) -> Redis:
        return client_of(self.url, os.getpid())


class RungConformance(LockConformance):
    SLUG: ClassVar[str]
    OPTIONS = {"ttl": LONG}

    @pytest.fixture
    def recipe(self, valkey: Valkey, client: Redis) -> RungRecipe:
        return RungRecipe(valkey.url, self.SLUG)

    def waiters(self, lock: Lock) -> int:
        raise NotImplementedError

    def traces(self, lock: Lock) -> dict[str, int]:
        raise NotImplementedError


Suite = type[RungConformance]

EXCLUDES = "test_it_excludes_others_until_it_is_released"
ONE_OBJECT = "test_one_lock_object_serves_many_threads_at_once"
HOLD = "test_hold_releases_on_leaving"
ANY_THREAD = "test_a_lease_may_be_used_by_another_thread"
PROCESSES = "test_processes_lose_no_update"
OWNER = "test_only_the_owner_releases"
LATE = "test_a_lost_lease_cannot_be_released"
TOLD = "test_a_holder_paused_beyond_its_ttl_is_told"
RENEWED = "test_renewal_keeps_the_lock_beyond_its_ttl"
RENEWAL_ENDS = "test_renewal_ends_with_the_release"
OUTERMOST = "test_the_outermost_release_frees_it"


def control(slug: str, *, fails: set[str], passes: set[str]) -> Callable[[Suite], Suite]:
    """Run only the named tests on a rung; those in `fails` must fail."""

    def narrow(suite: Suite) -> Suite:
        suite.SLUG, suite.FAILS = slug, frozenset(fails)
        return only(*fails, *passes)(suite)

    return narrow


@control("no-lock", fails={EXCLUDES, ONE_OBJECT}, passes={HOLD})
class TestNoLock(RungConformance): ...


@control("thread-lock", fails={PROCESSES, ANY_THREAD}, passes={"test_threads_lose_no_update"})
class TestThreadLock(RungConformance, AcrossProcessesConformance):
    FAILS_WITH = (AssertionError, RuntimeError)  # An RLock refuses another thread's release.


@control("setnx", fails={OWNER}, passes={EXCLUDES, ONE_OBJECT, HOLD, ANY_THREAD, PROCESSES})
class TestSetnx(RungConformance, AcrossProcessesConformance): ...


@control("set-nx-ex", fails={LATE, TOLD}, passes={EXCLUDES, HOLD})
class TestSetNxEx(RungConformance, ExpiresConformance): ...


@control("owner-as-text", fails={HOLD}, passes={ONE_OBJECT})
class TestOwnerAsText(RungConformance): ...


@control("renews-nothing", fails={RENEWED}, passes={EXCLUDES, HOLD, RENEWAL_ENDS})
class TestRenewsNothing(RungConformance, RenewsConformance):
    @pytest.fixture(autouse=True)
    def no_renewal_when_the_ttl_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Renew after 0.4, 0.8 and 1.2 times the TTL.

        If the TTL ends between the two commands of a renewal, this lock acquires itself again, and looks sound.
        """
        monkeypatch.setattr(renewal, "RENEWALS_PER_TTL", 2.5)


@control(
    "redisson-watchdog",
    fails=set(),
    passes={EXCLUDES, ONE_OBJECT, HOLD, ANY_THREAD, PROCESSES, OWNER, RENEWED, RENEWAL_ENDS, OUTERMOST},
)
class TestRedissonWatchdog(RungConformance, AcrossProcessesConformance, RenewsConformance, ReentrantConformance): ...


@control("re-entrant-without-the-count", fails={OUTERMOST}, passes={EXCLUDES, HOLD})
class TestReEntrantWithoutTheCount(RungConformance, ReentrantConformance): ...
