"""The watchdog, which renews leases."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from locking import Lease, RedisLock
from locking.lease import validity
from locking.redis.connection import ScriptCall
from locking.redis.renewal import RenewalConnection
from locking.renewal import RETRY_SECONDS, Watchdog, watchdog
from servers.valkey import Valkey
from tests.locking.conformance import RENEWED
from tests.locking.support import (
    Clock,
    CountedConnection,
    Flawed,
    Log,
    Patch,
    Pool,
    RedisRecipe,
    acquired,
    in_fork,
    paused,
    renew,
    run_threads,
)
from tests.waiting import WAIT_TIMEOUT, wait_for


class ScriptedRenewer:
    """Responds as the test says, and records the requests."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.answer: bool | Exception | None = True
        self.takes = 0.0
        self.asked: list[tuple[list[str], float]] = []
        self.closed = 0

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        self.asked.append(([lease.token for lease in leases], seconds))
        self.clock.now += self.takes
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer] * len(leases)

    def close(self) -> None:
        self.closed += 1


class UnattendedWatchdog(Watchdog):
    """A watchdog without a thread: the test itself calls `tick`."""

    def _run(self) -> None:
        pass


class TestTurn:
    """Single ticks of the watchdog, on a clock that only the test moves."""

    @pytest.fixture(autouse=True)
    def _watchdog(self) -> None:
        self.clock, self.dog, self.told = Clock(), UnattendedWatchdog(), list[str]()
        self.renewer = ScriptedRenewer(self.clock)

    def grant(self, token: str = "a", ttl: float = 9.0) -> Lease:  # noqa: S107
        lock: Any = SimpleNamespace(name="x", _release=lambda lease: True)
        now, told = self.clock(), self.told
        return Lease(
            lock, token, started=now, ttl=ttl, clock=self.clock, on_lost=lambda lease: told.append(lease.token)
        )

    def watched(self) -> Lease:
        lease = self.grant()
        self.dog.watch(lease, self.renewer)
        return lease

    def test_after_a_third_and_not_before_it_renews_for_a_whole_ttl(self) -> None:
        lease = self.watched()
        self.clock.now = 1002.9
        assert self.dog.tick() == pytest.approx(0.1)
        assert self.renewer.asked == []
        self.clock.now = 1003.0
        assert self.dog.tick() == pytest.approx(3.0)
        assert lease.remaining() == pytest.approx(validity(9.0))
        assert len(self.renewer.asked) == 1

    def test_a_late_grant_is_renewed_early(self) -> None:
        lease = self.grant()
        self.clock.now += 8.0
        self.dog.watch(lease, self.renewer)
        self.clock.now += self.dog.tick()
        assert lease.remaining() == pytest.approx((validity(9.0) - 8.0) / 2)
        self.dog.tick()
        assert lease.remaining() == pytest.approx(validity(9.0))

    def test_a_renewer_is_used_by_one_thread_at_a_time(self) -> None:
        there: list[int] = []
        another = threading.Event()

        def renew(leases: Sequence[Lease], seconds: float) -> Sequence[bool]:
            there.append(1)
            another.set() if len(there) > 1 else another.wait(0.2)
            there.pop()
            return [True] * len(leases)

        self.renewer.renew = renew  # type: ignore[method-assign]
        _lease = self.watched()
        self.clock.now += 3.0
        run_threads(*[self.dog.tick] * 2)
        assert not another.is_set()

    def test_a_lease_nearly_due_joins_the_batch(self) -> None:
        granted = []
        for token in ("first", "soon after", "much later"):
            granted.append(self.grant(token))
            self.dog.watch(granted[-1], self.renewer)
            self.clock.now += 1.4
        self.clock.now = 1000.0 + 3.0
        assert self.dog.tick() == pytest.approx(2.8)
        assert [tokens for tokens, _ in self.renewer.asked] == [["first", "soon after"]]

    def test_it_waits_for_half_of_the_shortest_time(self) -> None:
        renewed, watched = self.grant("renewed", 36.0), self.grant("watched", 20.0)
        self.dog.watch(renewed, self.renewer)
        self.dog.watch(watched, None)
        self.clock.now += 12.0
        self.dog.tick()
        assert [seconds for _, seconds in self.renewer.asked] == [pytest.approx((validity(20.0) - 12.0) / 2)]

    def test_without_an_answer_it_tries_until_the_end(self) -> None:
        lease = self.watched()
        self.renewer.answer = None
        self.clock.now += 3.0
        while (pause := self.dog.tick()) < math.inf:
            assert (self.told, pause > 0) == ([], True)
            self.clock.now += pause
        assert len(self.renewer.asked) > 5
        assert self.clock() - 1000.0 == pytest.approx(validity(9.0), abs=2 * RETRY_SECONDS)
        assert (lease.lost, self.told) == (True, ["a"])

    @pytest.mark.parametrize(("answer", "takes"), [(False, 0.0), (True, 7.0)], ids=["no", "too late"])
    def test_a_lease_that_another_holds_or_that_is_over_is_lost(self, answer: bool, takes: float) -> None:
        lease = self.watched()
        self.renewer.answer, self.renewer.takes = answer, takes
        self.clock.now += 3.0
        assert self.dog.tick() == math.inf
        assert (lease.lost, self.told) == (True, ["a"])

    def test_an_answer_for_a_released_lease_is_ignored(self) -> None:
        lease = self.watched()
        self.renewer.answer = False
        renew = self.renewer.renew

        def release_first(leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
            lease.release()
            return renew(leases, seconds)

        self.renewer.renew = release_first  # type: ignore[method-assign]
        self.clock.now += 3.0
        self.dog.tick()
        assert (lease.lost, self.told) == (False, [])

    def test_a_failing_renewer_does_not_affect_others(self, caplog: Log) -> None:
        renewers = [ScriptedRenewer(self.clock) for _ in range(3)]
        renewers[1].answer = RuntimeError("a bug in the lock")
        leases = [self.grant(token) for token in ("a", "b", "c")]
        for lease, renewer in zip(leases, renewers, strict=True):
            self.dog.watch(lease, renewer)
        self.clock.now += 3.0
        while not self.told:
            self.clock.now += min(self.dog.tick(), 0.5)
        assert self.told == ["b"]
        assert [lease.lost for lease in leases] == [False, True, False]
        assert len(renewers[1].asked) > 5, "it is tried again"
        assert "a bug in the lock" in caplog.text

    def test_a_renewer_without_leases_is_closed(self) -> None:
        lease = self.watched()
        self.clock.now += 3.0
        self.dog.tick()
        assert self.renewer.closed == 0
        self.dog.forget(lease)
        self.dog.tick()
        assert self.renewer.closed == 1


class TestThread:
    def test_there_is_one_for_all_leases_and_one_round_trip(self, recipe: RedisRecipe, client: redis.Redis) -> None:
        counted = type("Counted", (CountedConnection,), {})
        own = redis.Redis.from_url(recipe.url, connection_class=counted)
        leases = [RedisLock(own, f"many {index}", ttl=RENEWED).acquire() for index in range(50)]
        sent = counted.sent
        renew(*leases)
        assert sum(thread.name == "lock-renewal" for thread in threading.enumerate()) == 1
        assert counted.sent - sent < 20
        assert all(lease.release() for lease in leases)
        own.close()

    def test_an_uncontended_pair_neither_starts_nor_wakes_it(self, client: redis.Redis, monkeypatch: Patch) -> None:
        lock = RedisLock(client, "pair", ttl=60.0)
        lock.acquire().release()
        troubled: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", lambda thread: troubled.append("started"))
            patch.setattr(watchdog._condition, "notify", lambda: troubled.append("woken"))
            for _ in range(100):
                lock.acquire().release()
        assert troubled == []

    def test_a_lease_that_is_due_sooner_wakes_it(self, client: redis.Redis) -> None:
        with RedisLock(client, "long", ttl=60.0).hold(), RedisLock(client, "short", ttl=RENEWED).hold() as lease:
            renew(lease)

    def test_an_on_lost_that_fails_does_not_end_it(self, client: redis.Redis) -> None:
        told: list[Lease] = []

        def fail(lease: Lease) -> None:
            told.append(lease)
            raise SystemExit

        other = RedisLock(client, "other", ttl=RENEWED).acquire()
        lease = RedisLock(client, "failing", ttl=0.3, renew=False, on_lost=fail).acquire()
        wait_for(lambda: told)
        renew(other)
        other.check()
        assert lease.lost
        assert told == [lease]
        other.release()

    def test_a_child_has_its_own_watchdog(self, client: redis.Redis, threads: Pool) -> None:
        lock = RedisLock(client, "forked", ttl=RENEWED)
        holding = threading.Event()
        forked = threading.Event()

        def hold_the_condition() -> None:
            with watchdog._condition:
                holding.set()
                forked.wait(WAIT_TIMEOUT)

        def body() -> str:
            with lock.hold(timeout=WAIT_TIMEOUT) as lease:
                renew(lease)
            return "renewed"

        threads.submit(hold_the_condition)
        holding.wait(WAIT_TIMEOUT)
        try:
            assert in_fork(body) == "renewed"
        finally:
            forked.set()


class TestLoss:
    """The server fails while a redis-py client with default settings, which retries ten times, holds a lock."""

    TTL = 1.5

    def hold(self, valkey: Valkey, ttl: float = TTL) -> tuple[Lease, list[float]]:
        told: list[float] = []
        client = redis.Redis(unix_socket_path=str(valkey.socket))
        lock = RedisLock(client, "lost", ttl=ttl, on_lost=lambda _: told.append(time.monotonic()))
        lease = acquired(lock)
        return lease, told

    def test_a_hanging_server_is_asked_once_at_a_time(self, own_valkey: Valkey) -> None:
        class Called(CountedConnection):
            calls = 0

            def _connect(self) -> Any:
                type(self).calls += 1
                return super()._connect()

        patient = Retry(NoBackoff(), 10)
        pool = redis.Redis.from_url(own_valkey.url, connection_class=Called, retry=patient).connection_pool
        with paused(own_valkey.child.pid), pytest.raises(redis.TimeoutError):
            RenewalConnection(pool).run([ScriptCall("extend", ("a", "b"), ("token", 1000))], 0.4)
        assert Called.calls == 1

    def test_a_server_that_hangs_briefly_costs_nothing(self, own_valkey: Valkey) -> None:
        # The TTL is longer than a busy machine can delay the test.
        lease, told = self.hold(own_valkey, ttl=2 * self.TTL)
        renew(lease, seconds=0.1)
        with paused(own_valkey.child.pid):
            wait_for(lambda: lease.remaining() < 0.6 * lease.ttl)
        wait_for(lambda: lease.remaining() > 0.7 * lease.ttl or told)
        assert told == []
        assert lease.release() is True

    def test_a_hanging_server_does_not_affect_another(self, own_valkey: Valkey, client: redis.Redis) -> None:
        with RedisLock(client, "healthy", ttl=self.TTL).hold() as healthy:
            hung, told = self.hold(own_valkey)
            with paused(own_valkey.child.pid):
                wait_for(lambda: told)
                renew(healthy, seconds=0.2)
            assert hung.lost
            healthy.check()

    def test_a_server_error_is_tried_again(self, client: redis.Redis, flawed: Flawed, caplog: Log) -> None:
        flawed("extend", "local ttl", "error('not now') local ttl")
        lease = RedisLock(client, "refused", ttl=RENEWED).acquire()
        wait_for(lambda: lease.lost)
        assert caplog.text.count("not now") > 1
