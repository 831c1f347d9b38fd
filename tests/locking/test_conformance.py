"""The suite finds what it looks for: a lock with one fault fails the property that the fault breaks.

Others are with their servers: kazoo's recipe, the etcd, ZooKeeper and insert locks; and the rungs of the lab.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import redis

from locking import Lease, LockUnavailable, RedisLock
from locking.redis import connection
from tests.locking import test_redis
from tests.locking.conformance import SHORT, only
from tests.locking.support import RedisRecipe

DECLARED = "test_what_it_declares_is_what_is_tested"
PAIRS_LEAK = "test_it_leaves_nothing_behind"
TRIES_LEAK = "test_100_failed_tries_that_wait_leave_nothing_behind"
WRITES = "test_a_release_that_nobody_waits_for_writes_only_that_it_is_free"
CRASH = "test_the_lock_of_a_crashed_holder_becomes_free"
REPEATED = "test_a_release_whose_answer_was_lost_can_be_repeated_and_was_ours"
TOLD_WHILE_IT_HANGS = "test_the_holder_is_told_within_the_ttl_when_the_server_hangs"
MISSED = "test_a_release_between_the_look_and_the_sleep_is_not_missed"
RESTARTED = "test_it_works_after_a_restart_of_its_servers"
SCRIPTS_LOST = "test_it_works_after_its_servers_have_lost_the_scripts"


@dataclass(frozen=True)
class FaultyRecipe(RedisRecipe):
    """Makes locks of a kind of its own."""

    kind: type[RedisLock] = RedisLock

    def __call__(self, name: str, **options: Any) -> RedisLock:
        return self.kind(self.client, name, **options)


class Faulty(test_redis.TestRedisLock):
    KIND: ClassVar[type[RedisLock]] = RedisLock
    PAIRS = 100

    @pytest.fixture
    def recipe(self, recipe: RedisRecipe) -> RedisRecipe:
        return FaultyRecipe(recipe.url, kind=self.KIND)


class LeavesAKey(RedisLock):
    def _release(self, lease: Lease) -> bool:
        self._client.set(f"{self._key}:{lease.token}", 1)
        return super()._release(lease)


@only(PAIRS_LEAK, WRITES)
class TestLeavesAKey(Faulty):
    KIND = LeavesAKey
    FAILS = frozenset({PAIRS_LEAK, WRITES})


class LeavesAConnection(RedisLock):
    def _release(self, lease: Lease) -> bool:
        self._client.connection_pool.get_connection()
        return super()._release(lease)


@only(PAIRS_LEAK)
class TestLeavesAConnection(Faulty):
    KIND = LeavesAConnection
    FAILS = frozenset({PAIRS_LEAK})


class LeavesAThread(RedisLock):
    over = threading.Event()

    def _release(self, lease: Lease) -> bool:
        threading.Thread(target=self.over.wait, daemon=True).start()
        return super()._release(lease)


@only(PAIRS_LEAK)
class TestLeavesAThread(Faulty):
    KIND = LeavesAThread
    FAILS = frozenset({PAIRS_LEAK})

    @pytest.fixture(autouse=True)
    def _threads_end(self) -> Iterator[None]:
        LeavesAThread.over.clear()
        yield
        LeavesAThread.over.set()


class StaysInLine(RedisLock):
    """Whoever gives up is still on the list of those who wait."""

    def _leave_call(self, token: str, *, blocked: bool) -> connection.Call:
        return super()._leave_call("somebody else", blocked=blocked)._replace(keys=(self._waiters, self._bell(token)))


@only(TRIES_LEAK)
class TestStaysInLine(Faulty):
    KIND = StaysInLine
    FAILS = frozenset({TRIES_LEAK})


class LastsTooLong(RedisLock):
    """The server keeps it for eight times as long as it was told."""

    def __init__(self, client: Any, name: str, *, ttl: float = 10.0, **options: Any) -> None:
        super().__init__(client, name, ttl=8 * ttl, **options)


@only(CRASH)
class TestLastsTooLong(Faulty):
    KIND = LastsTooLong
    FAILS = frozenset({CRASH})


@only(REPEATED)
class TestForgetsThatItHasAsked(Faulty):
    """A release that finds nothing says that it was not ours, whatever was asked before."""

    FAILS = frozenset({REPEATED})

    @pytest.fixture(autouse=True)
    def _forgets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Lease, "_unanswered", property(lambda lease: False, lambda lease, value: None))


@only(TOLD_WHILE_IT_HANGS)
class TestWaitsForRenewal(Faulty):
    """The watchdog waits for an answer for as long as a client would."""

    FAILS = frozenset({TOLD_WHILE_IT_HANGS})

    @pytest.fixture(autouse=True)
    def _waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = connection.Line.run
        monkeypatch.setattr(connection.Line, "run", lambda line, calls, seconds: run(line, calls, 20 * SHORT))


@only(MISSED)
class TestWakesNobody(Faulty):
    FAILS = frozenset({MISSED})

    @pytest.fixture(autouse=True)
    def _wakes_nobody(self, flawed: Callable[[str, str, str], None]) -> None:
        flawed("release", "redis.call('RPUSH', KEYS[4], grant)", "")


@only(RESTARTED)
class TestForgetsWhatItGranted(Faulty):
    """Its server has nothing on disk, so that who comes after the restart holds the lock beside him from before."""

    FAILS = frozenset({RESTARTED})

    def restart(self) -> None:
        self.valkey.child.kill()
        shutil.rmtree(self.valkey.folder / "appendonlydir")
        self.valkey.start()


@only(RESTARTED)
class TestRenewsOverItsFirstConnection(Faulty):
    """It never opens another one."""

    FAILS = frozenset({RESTARTED})

    @pytest.fixture(autouse=True)
    def _opens_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connect, opened = connection.connect, list[Any]()

        def once(pool: Any, seconds: float) -> Any:
            if opened:
                raise redis.ConnectionError("cut")
            opened.append(connect(pool, seconds))
            return opened[0]

        monkeypatch.setattr(connection, "connect", once)


@only(SCRIPTS_LOST)
class TestBelievesThatItsScriptsAreKept(Faulty):
    FAILS = frozenset({SCRIPTS_LOST})
    FAILS_WITH = LockUnavailable

    @pytest.fixture(autouse=True)
    def _believes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "NoScriptError", type("NeverRaised", (Exception,), {}))


class ClaimsMore(RedisLock):
    capabilities = replace(RedisLock.capabilities, reentrant=True)


@only(DECLARED)
class TestClaimsMore(Faulty):
    KIND = ClaimsMore
    FAILS = frozenset({DECLARED})


class ClaimsLess(RedisLock):
    capabilities = replace(RedisLock.capabilities, across_machines=False)


@only(DECLARED)
class TestClaimsLess(Faulty):
    KIND = ClaimsLess
    FAILS = frozenset({DECLARED})
