"""Waiters of RedisLock: they are quiet, a release wakes them, and none is lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from locking import Lease, LockUnavailable, RedisLock, force_release, held
from locking._ids import new_token
from locking.lease import validity
from locking.redis.lock import NotGranted
from locking.redis.own_connections import own_connections
from locking.redis.waiting import Waiter
from tests.locking import actors
from tests.locking.conformance import BUSY
from tests.locking.support import (
    Clock,
    CommandStats,
    Flawed,
    Patch,
    Pool,
    RedisRecipe,
    RedisTraces,
    acquired,
    paused,
    process,
    separate_clients,
)
from tests.waiting import WAIT_TIMEOUT, wait_for

KEY, WAITERS, WAKE = "lock:{wait}", "lock:{wait}:waiters", "lock:{wait}:wake"

OFFER_OUTLIVES_ITS_GRANT = "redis.call('PEXPIRE', KEYS[4], math.max(ttl, redis.call('PTTL', KEYS[3])))"
"""The line of release.lua that keeps an unclaimed offer longer than its grant, so that others can recognise it."""

OVER = "1 1 over"
"""An expired grant: it was valid for a millisecond, long ago."""


@pytest.fixture
def lock(client: redis.Redis) -> RedisLock:
    """Return a lock with a long TTL, so that only a wake-up can end a wait for it."""
    return RedisLock(client, "wait", ttl=60.0)


def blocked(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


def take_turn(lock: RedisLock) -> int:
    """Wait for the lock, release it, and return its fence."""
    with lock.hold(timeout=2 * WAIT_TIMEOUT) as lease:
        return lease.fence


def asleep(lock: RedisLock, client: redis.Redis, threads: Pool, count: int = 1) -> Future[int]:
    """Start to wait for a turn. Return it once `count` waiters are asleep."""
    turn = threads.submit(take_turn, lock)
    wait_for(lambda: blocked(client) == count)
    return turn


class Sleeper:
    """A sleeping waiter that the test controls step by step."""

    def __init__(self, lock: RedisLock) -> None:
        token = new_token()
        assert not isinstance(lock._ask(token, float("inf"), waits=True), Lease)
        self.bell = lock._bell(token)
        leave, strike = partial(lock._leave, token), partial(lock._strike, token)
        pool = lock._client.connection_pool
        self.waiter = Waiter(pool, lock.name, self.bell, lock._wake, leave, strike, lock._give_up)
        self.waiter.listed = True
        assert self.waiter.wait(0.01, 60.0) is None

    def give_up(self) -> None:
        self.waiter.__exit__(None, None, None)


class TestPause:
    @pytest.mark.parametrize(
        ("left", "pause"),
        [
            pytest.param(250, 0.251, id="when the grant has expired, which is past its last millisecond"),
            pytest.param(0, 0.001, id="never at once"),
            pytest.param(90_000, 60.0, id="after its own TTL at the latest, whatever the holder's"),
            pytest.param(-1, 60.0, id="after its own TTL when the grant does not expire"),
        ],
    )
    def test_a_waiter_that_is_refused_looks_again(
        self, lock: RedisLock, monkeypatch: Patch, left: int, pause: float
    ) -> None:
        monkeypatch.setattr("locking.redis.lock.run_script", lambda *args, **options: [0, left])
        assert lock._ask(new_token(), float("inf"), waits=True).pause == pause


class TestHandOver:
    """A release with waiters grants the lock to one of them."""

    @pytest.mark.parametrize("handed_over", [True, False])
    def test_a_newcomer_cannot_overtake(
        self, lock: RedisLock, client: redis.Redis, threads: Pool, flawed: Flawed, handed_over: bool
    ) -> None:
        if not handed_over:
            flawed("release", "redis.call('SET', KEYS[1], grant, 'PX', ttl)", "redis.call('DEL', KEYS[1])")
            flawed("acquire", "not holder and waited_for", "false")
        lease, told = lock.acquire(), threading.Event()

        def hold_until_told() -> None:
            with lock.hold(timeout=2 * WAIT_TIMEOUT):
                told.wait(WAIT_TIMEOUT)

        turn = threads.submit(hold_until_told)
        wait_for(lambda: blocked(client) == 1)
        lease.release()
        newcomer = lock.acquire(blocking=False)
        if newcomer is not None:
            newcomer.release()
        told.set()
        turn.result(WAIT_TIMEOUT)
        assert (newcomer is None) is handed_over

    @pytest.mark.parametrize(("handed_on", "order"), [(True, [0, 1, 2]), (False, [2, 0, 1])])
    def test_the_order_outlives_the_holder(
        self,
        recipe: RedisRecipe,
        client: redis.Redis,
        threads: Pool,
        flawed: Flawed,
        handed_on: bool,
        order: list[int],
    ) -> None:
        if not handed_on:
            flawed("acquire", "not holder and waited_for", "false")
        client.set(KEY, "a holder who dies")
        served: list[int] = []

        def turn(place: int, waiting: redis.Redis, ttl: float) -> None:
            with RedisLock(waiting, "wait", ttl=ttl).hold(timeout=2 * WAIT_TIMEOUT):
                served.append(place)

        with separate_clients(recipe, 3) as separate:
            turns = []
            for place, ttl in enumerate((60.0, 60.0, 0.5)):  # The waiter with the shortest TTL queries first.
                turns.append(threads.submit(turn, place, separate[place].client, ttl))
                wait_for(lambda count=place + 1: blocked(client) == count)
            client.delete(KEY)
            for one in turns:
                one.result(WAIT_TIMEOUT)
        assert served == order

    def test_one_grant_at_a_time_waits_for_a_waiter(self, lock: RedisLock, client: redis.Redis) -> None:
        lease = lock.acquire()
        for _ in range(3):
            lock._ask(new_token(), float("inf"), waits=True)
        lease.release()
        force_release(client, "wait", by="who makes a second grant")
        assert client.lrange(WAKE, 0, -1) == [client.get(KEY)]
        assert 0 < client.pexpiretime(WAKE) <= max(client.pexpiretime(KEY), client.pexpiretime(WAITERS))

    @pytest.mark.parametrize("recognised", [True, False])
    def test_an_unclaimed_offer_goes_to_the_next_caller(
        self, lock: RedisLock, client: redis.Redis, flawed: Flawed, recognised: bool
    ) -> None:
        if not recognised:
            flawed("acquire", "redis.call('LINDEX', KEYS[4], 0) == holder", "false")
        with lock.hold() as before:  # Its release finds a waiter that is listed but not blocked.
            lock._ask(new_token(), float("inf"), waits=True)
        lease = lock.acquire(blocking=False)
        assert (lease is not None) is recognised
        if lease is not None:
            assert lease.fence > before.fence
            assert not client.exists(WAKE)
            assert client.get(KEY).decode() == lease.token
            assert lease.release() is True

    def test_a_waiter_not_yet_asleep_can_be_overtaken(
        self, lock: RedisLock, client: redis.Redis, monkeypatch: Patch, threads: Pool
    ) -> None:
        lease, overtakers = lock.acquire(), list[int]()

        def overtake() -> None:
            if not overtakers:
                lease.release()
                with lock.hold(timeout=0) as overtaker:
                    overtakers.append(overtaker.fence)

        RedisTraces().before_sleep(monkeypatch, overtake)
        assert threads.submit(take_turn, lock).result(WAIT_TIMEOUT) > overtakers[0]

    def test_a_try_is_refused_once_after_deaths(self, lock: RedisLock, client: redis.Redis) -> None:
        lock.acquire()
        lock._ask("a waiter who dies", float("inf"), waits=True)
        client.delete(KEY)
        assert lock.acquire(blocking=False) is None
        assert lock.acquire(blocking=False) is not None


class TestTimeOfAGrant:
    """When a release hands over the lock, the waiter counts its TTL from its last refused request."""

    def handed(self, lock: RedisLock, client: redis.Redis) -> tuple[str, str, NotGranted]:
        """Return a grant that a waiter would pop, the waiter's token, and the refusal of its request."""
        with RedisLock(client, "wait", ttl=30.0).hold():
            token = new_token()
            refused = lock._ask(token, float("inf"), waits=True)
            assert isinstance(refused, NotGranted)
        return client.lpop(WAKE).decode(), token, refused

    def test_a_fresh_grant_counts_from_the_request(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "wait", ttl=30.0)
        grant, token, refused = self.handed(lock, client)
        stats = CommandStats(client)
        lease = lock._accept(grant, token, refused.asked)
        assert lease._deadline == refused.asked + validity(30.0)
        assert stats() == {}
        assert lease.release() is True

    @pytest.mark.parametrize(("ttl", "age"), [(30.0, 15.0), (60.0, 0.0), (2.0, 0.0)], ids=["old", "longer", "shorter"])
    def test_an_old_one_or_one_of_another_ttl_gets_its_own(self, client: redis.Redis, ttl: float, age: float) -> None:
        lock = RedisLock(client, "wait", ttl=ttl)
        grant, token, refused = self.handed(lock, client)
        client.pexpire(KEY, round(1000 * (30.0 - age)))
        lease = lock._accept(grant, token, refused.asked - age)
        assert ttl - 1 < client.pttl(KEY) / 1000 <= ttl
        assert lease.remaining() > ttl - 1
        assert lease.release() is True

    def test_a_grant_during_a_look_counts_from_before_the_sleep(self, client: redis.Redis, monkeypatch: Patch) -> None:
        clock = Clock()
        lease = RedisLock(client, "wait", ttl=60.0, renew=False).acquire()
        lock = RedisLock(client, "wait", ttl=60.0, renew=False, clock=clock)
        sleep, timers = Waiter.wait, list[float]()

        def timer_ends_as_it_comes(self: Waiter, seconds: float, left: float) -> str | None:
            timers.append(seconds)
            if len(timers) > 1:
                return sleep(self, seconds, left)
            assert sleep(self, 0.01, left) is None
            lease.release()
            wait_for(lambda: blocked(client) == 0)
            clock.now += 55.0
            client.pexpire(KEY, 5000)
            return None

        monkeypatch.setattr(Waiter, "wait", timer_ends_as_it_comes)
        mine = lock.acquire(timeout=1000.0)
        assert len(timers) == 2
        assert client.pttl(KEY) > 50_000, "it was taken for fresh"
        assert mine.release() is True

    def test_one_that_is_over_is_none(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "wait", ttl=30.0)
        _, token, refused = self.handed(lock, client)
        client.delete(KEY, WAITERS)
        with RedisLock(client, "wait").hold(timeout=0):
            assert lock._accept(OVER, token, refused.asked) is None


class TestLateGrant:
    """A waiter that pops a grant holds the lock, even if it was about to give up."""

    def test_a_grant_at_the_deadline_is_taken(self, lock: RedisLock, client: redis.Redis, monkeypatch: Patch) -> None:
        lease = lock.acquire()
        sleep = Waiter.wait

        def time_is_up(self: Waiter, seconds: float, left: float) -> str | None:
            assert sleep(self, 0.01, left) is None
            lease.release()
            wait_for(lambda: blocked(client) == 0)
            return None

        monkeypatch.setattr(Waiter, "wait", time_is_up)
        late = acquired(lock, timeout=0.5)
        assert late.fence > lease.fence
        assert late.release() is True

    @pytest.mark.parametrize("given_back", [True, False])
    def test_an_unwanted_grant_goes_on(
        self, lock: RedisLock, client: redis.Redis, threads: Pool, given_back: bool
    ) -> None:
        lease = lock.acquire()
        sleeper = Sleeper(lock)
        turn = asleep(lock, client, threads, 2)
        lease.release()
        wait_for(lambda: blocked(client) == 1)
        if not given_back:
            sleeper.waiter._give_up = lambda grant: None
        sleeper.give_up()
        if not given_back:
            assert (client.zcard(WAITERS), blocked(client)) == (1, 1)
            client.rpush(WAKE, client.get(KEY))
        assert turn.result(WAIT_TIMEOUT) > lease.fence

    def test_an_interrupt_with_a_grant_hands_it_on(
        self, lock: RedisLock, client: redis.Redis, recipe: RedisRecipe, threads: Pool, monkeypatch: Patch
    ) -> None:
        lease, accept = lock.acquire(), RedisLock._accept
        hit: list[str] = []

        def interrupted(self: RedisLock, grant: str, *args: Any, **options: Any) -> Any:
            if not hit:
                hit.append(grant)
                raise KeyboardInterrupt
            return accept(self, grant, *args, **options)

        monkeypatch.setattr(RedisLock, "_accept", interrupted)
        first = asleep(lock, client, threads)
        with separate_clients(recipe, 1) as (beside,):  # Its waiters have their own connection and their own queue.
            turn = asleep(beside("wait", ttl=60.0), client, threads, 2)
            lease.release()
            assert turn.result(WAIT_TIMEOUT) > lease.fence
        assert isinstance(first.exception(WAIT_TIMEOUT), KeyboardInterrupt)

    def test_a_stopped_waiter_costs_a_ttl_and_a_look(
        self, client: redis.Redis, recipe: RedisRecipe, threads: Pool
    ) -> None:
        ttl = 0.5
        lock = RedisLock(client, "wait", ttl=ttl)
        lease = lock.acquire()
        with process(actors.wait_and_hold, recipe, "wait", {"ttl": ttl}) as (child, pipe):
            wait_for(lambda: blocked(client) == 1)
            turn = asleep(lock, client, threads, 2)
            with paused(child.pid):
                released = time.monotonic()
                lease.release()
                fence = turn.result(WAIT_TIMEOUT)
                assert time.monotonic() - released < 2 * ttl + BUSY
                assert fence > lease.fence
            # After the pause, the stopped waiter does not use its old grant.
            assert (pipe.recv(), pipe.recv()) == ("waiting", int(client.get(f"{KEY}:fence").split()[0]))
            pipe.send("release")
            assert pipe.recv() is True

    def test_a_stopped_waiter_costs_the_releases_ttl(self, client: redis.Redis, recipe: RedisRecipe) -> None:
        lease = RedisLock(client, "wait", ttl=60.0).acquire()
        with process(actors.wait_and_hold, recipe, "wait", {"ttl": 0.5}) as (child, _):
            wait_for(lambda: blocked(client) == 1)
            with paused(child.pid):
                lease.release()
                assert RedisLock(client, "wait", ttl=0.5).acquire(timeout=2.0) is None


class TestDeadWaiters:
    """A waiter that dies costs others at most one refusal. The lock is never lost."""

    TTL = 10.0

    @pytest.fixture
    def short(self, client: redis.Redis) -> RedisLock:
        """Return a lock with a much shorter TTL than that of the waiter that dies."""
        return RedisLock(client, "wait", ttl=self.TTL, renew=False)

    @staticmethod
    def die(client: redis.Redis) -> None:
        """List a waiter that does not sleep any more, but counts as alive for two minutes."""
        RedisLock(client, "wait", ttl=60.0)._ask("a waiter who dies", float("inf"), waits=True)

    def offer_is_over(self, client: redis.Redis) -> None:
        """Shorten the TTL of every key by that of the offer, as if the offer's time had passed."""
        for key in client.scan_iter("lock:*"):
            if (left := client.pttl(key) - int(1000 * self.TTL)) > 0:
                client.pexpire(key, left)
            else:
                client.delete(key)
        assert not client.exists(KEY)

    @pytest.mark.parametrize("remembered", [True, False])
    def test_a_try_is_granted_once_the_offer_is_over(
        self, short: RedisLock, client: redis.Redis, flawed: Flawed, remembered: bool
    ) -> None:
        if not remembered:
            flawed("release", OFFER_OUTLIVES_ITS_GRANT, "redis.call('PEXPIRE', KEYS[4], ttl)")
        with short.hold():
            self.die(client)
        self.offer_is_over(client)
        assert (short.acquire(timeout=0) is not None) is remembered

    def test_a_dead_holder_and_waiter_cost_one_refusal(self, short: RedisLock, client: redis.Redis) -> None:
        with short.hold():
            self.die(client)
            client.delete(KEY)
            assert short.acquire(timeout=0) is None
        self.offer_is_over(client)
        for _ in range(3):
            acquired(short, timeout=0).release()
            self.offer_is_over(client)

    def test_an_offer_that_is_over_goes_to_nobody_twice(
        self, lock: RedisLock, short: RedisLock, client: redis.Redis, threads: Pool
    ) -> None:
        with short.hold():
            self.die(client)
        self.offer_is_over(client)
        with lock.hold(timeout=0):
            assert not client.exists(WAKE)
            turn = asleep(RedisLock(client, "wait", ttl=60.0), client, threads)
            assert not turn.done()
        assert turn.result(WAIT_TIMEOUT) > 0

    def test_an_unclaimed_offer_is_no_holder(self, lock: RedisLock, client: redis.Redis) -> None:
        with lock.hold():
            self.die(client)
            assert [one.name for one in held(client)] == ["wait"]
        assert client.exists(KEY, WAKE) == 2
        assert held(client) == []
        assert force_release(client, "wait", by="who sees an offer") is False

    def test_a_waiter_that_is_cut_is_told_and_strikes_its_entry(
        self, lock: RedisLock, client: redis.Redis, threads: Pool
    ) -> None:
        with lock.hold():
            attempt = threads.submit(lock.acquire)
            wait_for(lambda: blocked(client) == 1)
            (sleeping,) = [one for one in client.client_list() if "b" in one["flags"]]
            client.client_kill_filter(_id=sleeping["id"])
            with pytest.raises(LockUnavailable, match="cut"):
                attempt.result(WAIT_TIMEOUT)
            assert (client.zcard(WAITERS), blocked(client)) == (0, 0)

    def test_an_interrupt_after_a_refusal_strikes_the_entry(
        self, lock: RedisLock, client: redis.Redis, monkeypatch: Patch
    ) -> None:
        def interrupted(self: RedisLock, *args: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(RedisLock, "_wait", interrupted)
        with lock.hold():
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
            assert client.zcard(WAITERS) == 0


class TestLog:
    """Waiting adds nothing to the append-only log, where each entry may have to wait for the disk."""

    @pytest.mark.parametrize("replicates", [False, True])
    def test_waiting_writes_nothing_to_the_log(
        self, lock: RedisLock, client: redis.Redis, flawed: Flawed, replicates: bool
    ) -> None:
        if replicates:
            flawed("acquire", "redis.set_repl(redis.REPL_NONE)", "")
        with lock.hold():
            before = client.info("persistence")["aof_current_size"]
            sleeper = Sleeper(lock)
            after = client.info("persistence")["aof_current_size"]
            sleeper.give_up()
        assert (after > before) is replicates


class TestLeaving:
    def test_giving_up_leaves_nothing(self, lock: RedisLock, client: redis.Redis) -> None:
        with lock.hold():
            sleeper = Sleeper(lock)
            connection = sleeper.waiter._connection
            sleeper.give_up()
            assert not client.exists(WAITERS, WAKE, sleeper.bell)
            assert connection in own_connections(client.connection_pool)._idle
            assert connection.is_connected
            assert connection.can_read() is False

    def test_a_grant_without_a_wake_ends_the_wait(self, client: redis.Redis) -> None:
        client.set(KEY, "a holder who dies", px=300)
        with RedisLock(client, "wait", ttl=60.0).hold(timeout=WAIT_TIMEOUT):
            connections = own_connections(client.connection_pool)._idle
            assert [connection.is_connected for connection in connections] == [True, True]
            assert blocked(client) == 0
            assert set(client.scan_iter()) == {KEY.encode(), b"lock:{wait}:fence"}

    def test_a_vanished_waiter_is_removed(self, lock: RedisLock, client: redis.Redis) -> None:
        with lock.hold():
            client.zadd(WAITERS, {"a dead waiter": 1})
            lock._ask("me", float("inf"), waits=True)
            assert client.zrange(WAITERS, 0, -1) == [b"me"]

    def test_a_grant_without_a_watchdog_thread_is_undone(self, client: redis.Redis, monkeypatch: Patch) -> None:
        monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="new thread"):
            RedisLock(client, "wait").acquire()
        assert not client.exists(KEY)
