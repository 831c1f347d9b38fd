"""Negative controls of the conformance suite: a lock with one flaw fails the test for this flaw.

More controls are in the tests of the other locks, of kazoo's and Redisson's recipes, and of the lab's flawed locks.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import redis

from locking import Lease, LockUnavailable, RedisLock
from locking.redis import connection, renewal
from locking.redis.renewal import RenewalConnection
from locking.redis.waiting import Waiter
from tests.locking import test_redis
from tests.locking.conformance import SHORT, fails
from tests.locking.support import Flawed, Patch, RedisRecipe

DECLARED = "test_what_it_declares_is_what_is_tested"
PAIRS_LEAK = "test_it_leaves_nothing_behind"
RESTARTED = "test_it_works_after_a_restart"


class Faulty(test_redis.TestRedisLock):
    KIND: ClassVar[type[RedisLock]] = RedisLock

    @pytest.fixture
    def recipe(self, recipe: RedisRecipe) -> RedisRecipe:
        return replace(recipe, kind=self.KIND)


@fails(PAIRS_LEAK, "test_a_release_without_waiters_writes_once")
class TestLeavesAKey(Faulty):
    class KIND(RedisLock):
        def _release(self, lease: Lease) -> bool:
            self._client.set(f"{self._key}:{lease.token}", 1)
            return super()._release(lease)


@fails(PAIRS_LEAK)
class TestLeavesAConnection(Faulty):
    class KIND(RedisLock):
        def _release(self, lease: Lease) -> bool:
            self._client.connection_pool.get_connection()
            return super()._release(lease)


@fails(PAIRS_LEAK)
class TestLeavesAThread(Faulty):
    class KIND(RedisLock):
        over = threading.Event()

        def _release(self, lease: Lease) -> bool:
            threading.Thread(target=self.over.wait, daemon=True).start()
            return super()._release(lease)

    @pytest.fixture(autouse=True)
    def _threads_end(self) -> Iterator[None]:
        self.KIND.over.clear()
        yield
        self.KIND.over.set()


@fails("test_failed_waits_leave_nothing")
class TestStaysInLine(Faulty):
    """Flawed: a waiter that gives up stays in the list of waiters."""

    class KIND(RedisLock):
        def _leave_call(self, token: str, *, blocked: bool) -> connection.ScriptCall:
            call = super()._leave_call("another token", blocked=blocked)
            return call._replace(keys=(self._waiters, self._bell(token)))


@fails("test_the_lock_of_a_crashed_holder_becomes_free")
class TestLastsTooLong(Faulty):
    """Flawed: the server keeps a grant for eight times its TTL."""

    class KIND(RedisLock):
        def __init__(self, client: Any, name: str, *, ttl: float = 10.0, **options: Any) -> None:
            super().__init__(client, name, ttl=8 * ttl, **options)


@fails("test_an_unanswered_release_can_be_repeated")
class TestForgetsThatItHasAsked(Faulty):
    """Flawed: after a release without a response, the next release says that the lock was not held."""

    FLAW = (Lease, "_unanswered", property(lambda lease: False, lambda lease, value: None))


@fails("test_a_lost_lease_cannot_be_released")
class TestReleasesWhatAnotherHolds(Faulty):
    @pytest.fixture(autouse=True)
    def _checks_no_owner(self, flawed: Flawed) -> None:
        flawed("release", "redis.call('GET', KEYS[1]) ~= ARGV[1]", "false")


@fails("test_the_holder_is_told_when_the_server_hangs")
class TestWaitsForRenewal(Faulty):
    """Flawed: the watchdog waits ten seconds for each renewal."""

    run = RenewalConnection.run
    FLAW = (RenewalConnection, "run", lambda line, calls, _, run=run: run(line, calls, 20 * SHORT))


@fails("test_a_release_before_the_sleep_is_not_missed")
class TestWakesNobody(Faulty):
    @pytest.fixture(autouse=True)
    def _wakes_nobody(self, flawed: Flawed) -> None:
        flawed("release", "redis.call('RPUSH', KEYS[4], grant)", "")


@fails("test_an_idle_waiter_is_quiet")
class TestPolls(Faulty):
    """Flawed: a waiter queries the lock at least twenty times a second."""

    wait = Waiter.wait
    FLAW = (Waiter, "wait", lambda waiter, seconds, left, wait=wait: wait(waiter, min(seconds, 0.05), left))


@fails(RESTARTED)
class TestForgetsWhatItGranted(Faulty):
    """Flawed: after a restart without its data, the server grants the lock twice."""

    def restart(self) -> None:
        self.valkey.child.kill()
        shutil.rmtree(self.valkey.folder / "appendonlydir")
        self.valkey.start()


@fails(RESTARTED)
class TestRenewsOverItsFirstConnection(Faulty):
    """Flawed: renewal cannot open a second connection."""

    @pytest.fixture(autouse=True)
    def _opens_one(self, monkeypatch: Patch) -> None:
        connect, opened = renewal.open_connection, list[Any]()

        def once(pool: Any, seconds: float) -> Any:
            if opened:
                raise redis.ConnectionError("cut")
            opened.append(connect(pool, seconds))
            return opened[0]

        monkeypatch.setattr(renewal, "open_connection", once)


@fails("test_it_works_after_the_scripts_were_lost")
class TestBelievesThatItsScriptsAreKept(Faulty):
    FAILS_WITH = LockUnavailable
    FLAW = (connection, "NoScriptError", type("NeverRaised", (Exception,), {}))


@fails(DECLARED)
class TestClaimsMore(Faulty):
    class KIND(RedisLock):
        capabilities = replace(RedisLock.capabilities, reentrant=True)


@fails(DECLARED)
class TestClaimsLess(Faulty):
    class KIND(RedisLock):
        capabilities = replace(RedisLock.capabilities, across_machines=False)
