"""How waiters of a RedisLock sleep: quietly, woken by the release, and never forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

from locking import Lease, LockUnavailable, RedisLock
from locking.redis import new_token
from locking.waiting import Waiter
from tests.locking import actors
from tests.locking.support import CountedConnection, RedisRecipe, process, run_threads
from tests.waiting import PATIENCE, wait_for

KEY, WAITERS, WAKE = "lock:{wait}", "lock:{wait}:waiters", "lock:{wait}:wake"

PUSH_THE_WAKE = "redis.call('RPUSH', KEYS[3], 1)"
"""The line of release.lua and leave.lua without which nobody is woken."""


@pytest.fixture
def lock(client: redis.Redis) -> RedisLock:
    """A lock whose TTL no test lives to see the end of: whoever gets it has been woken."""
    return RedisLock(client, "wait", ttl=60.0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


def blocked(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


def take_turn(lock: RedisLock) -> int:
    """Wait for the lock, and return the fence."""
    with lock.hold(timeout=2 * PATIENCE) as lease:
        assert lease.fence is not None
        return lease.fence


def stuck(client: redis.Redis) -> bool:
    """Whether the lock is free, somebody waits for it, and no wake is on its way."""
    return not client.exists(KEY) and client.zcard(WAITERS) == blocked(client) == 1 and not client.exists(WAKE)


class Sleeper:
    """A waiter that is asleep, step by step: registered, blocked, and given up when the test says so."""

    def __init__(self, lock: RedisLock) -> None:
        token = new_token()
        assert not isinstance(lock._ask(token, float("inf"), waits=True), Lease)
        self.bell = lock._bell(token)
        self.waiter = Waiter(lock._client, lock.name, self.bell, lock._wake, partial(lock._leave, token))
        assert self.waiter.wait(0.01, 60.0) is False

    def give_up(self) -> None:
        self.waiter.__exit__(None, None, None)


class TestQuiet:
    def test_an_idle_waiter_sends_at_most_one_command_a_ttl(self, recipe: RedisRecipe, client: redis.Redis) -> None:
        counted = type("Counted", (CountedConnection,), {})
        ttl = 0.5
        with RedisLock(client, "wait", ttl=ttl).hold():
            lock = RedisLock(redis.Redis.from_url(recipe.url, connection_class=counted), "wait", ttl=ttl)
            thread = threading.Thread(target=take_turn, args=(lock,))
            thread.start()
            wait_for(lambda: blocked(client) == 1)
            assert self.sent_a_ttl(counted, ttl) <= 1
        thread.join()

    def test_a_polling_waiter_sends_more(self, recipe: RedisRecipe, client: redis.Redis) -> None:
        counted = type("Counted", (CountedConnection,), {})
        ttl = 0.5
        client.set("polled", "held")
        lock = redis.Redis.from_url(recipe.url, connection_class=counted).lock("polled", timeout=ttl)
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        wait_for(lambda: counted.sent > 0)
        assert self.sent_a_ttl(counted, ttl) > 1
        client.delete("polled")
        thread.join()

    @staticmethod
    def sent_a_ttl(counted: type[CountedConnection], ttl: float) -> float:
        """Watch four TTLs, from one command to another, so that no fraction of a TTL counts."""
        sent = counted.sent
        wait_for(lambda: counted.sent > sent)
        start, sent = time.monotonic(), counted.sent
        wait_for(lambda: time.monotonic() - start > 4 * ttl)
        wait_for(lambda count=counted.sent: counted.sent > count)
        return (counted.sent - sent) / ((time.monotonic() - start) / ttl)


class TestPause:
    @pytest.mark.parametrize(
        ("left", "pause"),
        [
            pytest.param(250, 0.251, id="when the grant has expired, which is past its last millisecond"),
            pytest.param(0, 0.001, id="never at once"),
            pytest.param(90_000, 60.0, id="after its own TTL at the latest, whoever holds it"),
            pytest.param(-1, 60.0, id="after its own TTL when the grant does not expire"),
        ],
    )
    def test_a_waiter_that_is_refused_looks_again(
        self, lock: RedisLock, monkeypatch: pytest.MonkeyPatch, left: int, pause: float
    ) -> None:
        monkeypatch.setattr("locking.redis.request", lambda *args, **options: [0, left])
        assert lock._ask(new_token(), float("inf"), waits=True) == pause


class TestWake:
    def test_a_release_wakes_one_of_many(self, lock: RedisLock, client: redis.Redis) -> None:
        lease = lock.acquire()
        assert lease is not None
        for _ in range(3):
            lock._ask(new_token(), float("inf"), waits=True)
        lease.release()
        assert client.llen(WAKE) == 1
        assert client.pttl(WAKE) > 0
        lock.acquire().release()
        assert client.llen(WAKE) == 1

    def test_without_the_wake_a_waiter_sleeps_on(
        self,
        lock: RedisLock,
        client: redis.Redis,
        threads: ThreadPoolExecutor,
        flawed: Callable[[str, str, str], None],
    ) -> None:
        flawed("release", PUSH_THE_WAKE, "")
        lease = lock.acquire()
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 1)
        lease.release()
        assert stuck(client)
        self.let_go(client, turn)

    def test_without_the_wake_a_waiter_looks_again_after_its_ttl(
        self, client: redis.Redis, threads: ThreadPoolExecutor, flawed: Callable[[str, str, str], None]
    ) -> None:
        flawed("release", PUSH_THE_WAKE, "")
        lease = RedisLock(client, "wait", ttl=60.0).acquire()
        turn = threads.submit(take_turn, RedisLock(client, "wait", ttl=0.5))
        wait_for(lambda: blocked(client) == 1)
        lease.release()
        assert turn.result(PATIENCE) > lease.fence

    def test_a_timeout_counts_in_all_however_often_wakes_are_stolen(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        with lock.hold():
            start = time.monotonic()
            attempt = threads.submit(lock.acquire, timeout=0.5)
            wakes = 0
            while not attempt.done():  # for ever, if each wake began the wait anew
                if not client.exists(WAKE):
                    client.rpush(WAKE, 1)
                    wakes += 1
            assert attempt.result() is None
            assert time.monotonic() - start >= 0.5
            assert wakes > 5

    def test_a_wake_that_comes_before_the_waiter_sleeps_is_not_missed(
        self, lock: RedisLock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
    ) -> None:
        lease = lock.acquire()
        sleep = Waiter.wait

        def release_first(self: Waiter, seconds: float, left: float) -> bool:
            lease.release()
            return sleep(self, seconds, left)

        monkeypatch.setattr(Waiter, "wait", release_first)
        assert threads.submit(take_turn, lock).result(PATIENCE) > lease.fence

    @staticmethod
    def let_go(client: redis.Redis, turn: Future[Any]) -> None:
        client.rpush(WAKE, 1)
        turn.result(PATIENCE)


class TestLostWake:
    """A wake is one element of a list: whoever pops it has to use it or pass it on."""

    def test_one_who_gives_up_just_as_he_is_woken_passes_the_wake_on(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        lease = lock.acquire()
        sleeper = Sleeper(lock)
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 2)
        lease.release()
        wait_for(lambda: stuck_but_for(client, sleeper))
        sleeper.give_up()
        assert turn.result(PATIENCE) > lease.fence

    def test_without_passing_it_on_the_next_one_sleeps_on(
        self,
        lock: RedisLock,
        client: redis.Redis,
        threads: ThreadPoolExecutor,
        flawed: Callable[[str, str, str], None],
    ) -> None:
        flawed("leave", PUSH_THE_WAKE, "")
        lease = lock.acquire()
        sleeper = Sleeper(lock)
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 2)
        lease.release()
        sleeper.give_up()
        assert stuck(client)
        TestWake.let_go(client, turn)

    def test_one_who_gives_up_does_not_take_the_wake_that_he_passes_on(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        client.set(KEY, "a holder who dies", px=60_000)
        sleeper = Sleeper(lock)  # blocked first, so the first to be served
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 2)
        client.delete(KEY)
        sleeper.give_up()
        assert turn.result(PATIENCE)

    def test_one_who_has_given_up_takes_no_later_wake(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        lease = lock.acquire()
        sleeper = Sleeper(lock)
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 2)
        sleeper.give_up()
        assert blocked(client) == 1
        lease.release()
        assert turn.result(PATIENCE) > lease.fence

    def test_one_who_dies_when_woken_delays_the_others_by_their_ttl_at_most(
        self, lock: RedisLock, client: redis.Redis, recipe: RedisRecipe, threads: ThreadPoolExecutor
    ) -> None:
        lease = lock.acquire()
        with process(actors.die_when_woken, recipe, "wait", {"ttl": 60.0}) as (child, _):
            wait_for(lambda: blocked(client) == 1)
            turn = threads.submit(take_turn, RedisLock(client, "wait", ttl=0.5))
            wait_for(lambda: blocked(client) == 2)
            lease.release()
            assert turn.result(PATIENCE) > lease.fence
            child.join()
            assert child.exitcode == 9

    def test_one_who_looks_by_himself_and_is_granted_takes_no_later_wake(
        self, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        client.set(KEY, "a holder who dies", px=300)
        turns = [threads.submit(take_turn, RedisLock(client, "wait", ttl=60.0)) for _ in range(12)]
        fences = [turn.result(PATIENCE) for turn in turns]  # the first by its timer, all others by a wake
        assert len(set(fences)) == 12
        assert blocked(client) == 0


def stuck_but_for(client: redis.Redis, sleeper: Sleeper) -> bool:
    """Whether the wake has gone to the sleeper, who has not looked yet."""
    return not client.exists(KEY, WAKE) and client.zcard(WAITERS) == 2 and blocked(client) == 1


class TestLeaving:
    def test_giving_up_leaves_no_key_and_a_connection_that_can_be_used_again(
        self, lock: RedisLock, client: redis.Redis
    ) -> None:
        with lock.hold():
            sleeper = Sleeper(lock)
            connection = sleeper.waiter._connection
            sleeper.give_up()
            assert not client.exists(WAITERS, WAKE, sleeper.bell)
            assert connection in client.connection_pool._available_connections
            assert connection.is_connected
            assert connection.can_read() is False

    def test_a_grant_that_came_without_a_wake_ends_the_wait_for_certain(self, client: redis.Redis) -> None:
        client.set(KEY, "a holder who dies", px=300)
        with RedisLock(client, "wait", ttl=60.0).hold(timeout=PATIENCE):
            connections = client.connection_pool._available_connections
            assert [connection.is_connected for connection in connections] == [True, True]
            assert blocked(client) == 0
            assert set(client.scan_iter()) == {KEY.encode(), b"lock:{wait}:fence"}

    def test_a_waiter_that_vanished_is_struck_off_by_the_next(self, lock: RedisLock, client: redis.Redis) -> None:
        with lock.hold():
            client.zadd(WAITERS, {"somebody who is gone": 1})
            lock._ask("me", float("inf"), waits=True)
            assert client.zrange(WAITERS, 0, -1) == [b"me"]

    def test_a_waiter_whose_connection_is_cut_is_told(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        with lock.hold():
            attempt = threads.submit(lock.acquire)
            wait_for(lambda: blocked(client) == 1)
            (sleeping,) = [one for one in client.client_list() if "b" in one["flags"]]
            client.client_kill_filter(_id=sleeping["id"])
            with pytest.raises(LockUnavailable, match="cut"):
                attempt.result(PATIENCE)
        assert client.connection_pool._in_use_connections == set()

    def test_a_waiter_whose_thread_cannot_start_keeps_nothing(
        self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            RedisLock(client, "wait").acquire()
        assert not client.exists(KEY)

    def test_many_waiters_that_give_up_at_once_leave_nothing(self, lock: RedisLock, client: redis.Redis) -> None:
        with lock.hold():
            assert run_threads(*[partial(lock.acquire, timeout=0.2)] * 16) == [None] * 16
            assert not client.exists(WAITERS, WAKE)
            assert blocked(client) == 0
