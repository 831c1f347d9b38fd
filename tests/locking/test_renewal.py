"""The watchdog: it renews while it can, tells the holder when it cannot, and costs nothing meanwhile."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from locking import Capabilities, Lease, LeaseLost, Lock, RedisLock
from locking.lease import validity
from locking.redis import connection
from locking.renewal import RETRY_SECONDS, Watchdog, watchdog
from servers.valkey import Valkey
from tests.locking.conformance import BUSY, RENEWED
from tests.locking.support import Clock, CountedConnection, RedisRecipe, end_of, in_fork, paused, renewing
from tests.waiting import PATIENCE, wait_for

SOCKET_TIMEOUT = 5.0
"""Seconds: redis-py's default, which a renewal that waits for a server that hangs would take at least."""


class ScriptedRenewer:
    """Answers as the test says, and notes what it was asked."""

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


class NoLock(Lock):
    capabilities = Capabilities()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:
        raise NotImplementedError

    def _extend(self, lease: Lease, ttl: float) -> bool:
        raise NotImplementedError

    def _release(self, lease: Lease) -> bool:
        return True


class UnattendedWatchdog(Watchdog):
    """One whose turns the test takes by hand."""

    def _run(self) -> None:
        pass


class TestTurn:
    """One `tick`, with a clock that stands still."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def renewer(self, clock: Clock) -> ScriptedRenewer:
        return ScriptedRenewer(clock)

    @pytest.fixture
    def dog(self) -> Watchdog:
        return UnattendedWatchdog()

    @pytest.fixture
    def told(self) -> list[str]:
        return []

    @pytest.fixture
    def grant(self, clock: Clock, told: list[str]) -> Callable[..., Lease]:
        def make(token: str = "a", ttl: float = 9.0) -> Lease:  # noqa: S107
            return Lease(
                NoLock("x", ttl=ttl),
                token,
                started=clock(),
                ttl=ttl,
                clock=clock,
                on_lost=lambda lease: told.append(lease.token),
            )

        return make

    def test_before_a_third_of_the_ttl_there_is_nothing_to_do(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        lease = grant()
        dog.watch(lease, renewer)
        clock.now += 2.9
        assert dog.tick() == pytest.approx(0.1)
        assert renewer.asked == []

    def test_after_a_third_it_renews_for_a_whole_ttl(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        lease = grant()
        dog.watch(lease, renewer)
        clock.now += 3.0
        assert dog.tick() == pytest.approx(3.0)
        assert lease.remaining() == pytest.approx(validity(9.0))
        assert len(renewer.asked) == 1

    def test_one_that_was_long_in_coming_is_renewed_when_half_of_the_rest_is_over(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        lease = grant()
        clock.now += 8.0
        dog.watch(lease, renewer)
        clock.now += dog.tick()
        assert lease.remaining() == pytest.approx((validity(9.0) - 8.0) / 2)
        dog.tick()
        assert lease.remaining() == pytest.approx(validity(9.0))

    def test_a_renewer_is_used_by_one_thread_at_a_time(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        """Its connection cannot tell whose answer is whose."""
        there: list[int] = []
        another = threading.Event()

        def renew(leases: Sequence[Lease], seconds: float) -> Sequence[bool]:
            there.append(1)
            another.set() if len(there) > 1 else another.wait(0.2)
            there.pop()
            return [True] * len(leases)

        renewer.renew = renew  # type: ignore[method-assign]
        lease = grant()
        dog.watch(lease, renewer)
        clock.now += 3.0
        threads = [threading.Thread(target=dog.tick) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not another.is_set()

    def test_leases_of_one_server_are_renewed_together(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        leases = [grant("a"), grant("b"), grant("c")]
        for lease in leases:
            dog.watch(lease, renewer)
        clock.now += 3.0
        dog.tick()
        assert [tokens for tokens, _ in renewer.asked] == [["a", "b", "c"]]

    def test_a_lease_whose_turn_is_near_goes_along_with_one_whose_turn_it_is(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        granted = []
        for token in ("first", "soon after", "much later"):
            granted.append(grant(token))
            dog.watch(granted[-1], renewer)
            clock.now += 1.4
        clock.now = 1000.0 + 3.0
        assert dog.tick() == pytest.approx(2.8)
        assert [tokens for tokens, _ in renewer.asked] == [["first", "soon after"]]

    def test_it_waits_for_half_of_the_least_time_left(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        renewed, watched = grant("renewed", 36.0), grant("watched", 20.0)
        dog.watch(renewed, renewer)
        dog.watch(watched, None)
        clock.now += 12.0
        dog.tick()
        assert [seconds for _, seconds in renewer.asked] == [pytest.approx((validity(20.0) - 12.0) / 2)]

    def test_without_an_answer_it_tries_again_until_the_time_is_over(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock, told: list[str]
    ) -> None:
        lease = grant()
        dog.watch(lease, renewer)
        renewer.answer = None
        clock.now += 3.0
        while (pause := dog.tick()) < math.inf:
            assert (told, pause > 0) == ([], True)
            clock.now += pause
        assert len(renewer.asked) > 5
        assert clock() - 1000.0 == pytest.approx(validity(9.0), abs=2 * RETRY_SECONDS)
        assert (lease.lost, told) == (True, ["a"])

    def test_not_ours_any_more_is_lost_at_once(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock, told: list[str]
    ) -> None:
        lease = grant()
        dog.watch(lease, renewer)
        renewer.answer = False
        clock.now += 3.0
        assert dog.tick() == math.inf
        assert (lease.lost, told) == (True, ["a"])

    def test_an_answer_that_comes_too_late_does_not_revive_the_lease(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock, told: list[str]
    ) -> None:
        lease = grant()
        dog.watch(lease, renewer)
        renewer.takes = 7.0  # it would be in time if the answer counted from now
        clock.now += 3.0
        assert dog.tick() == math.inf
        assert (lease.lost, told) == (True, ["a"])

    def test_an_answer_for_a_lease_that_was_released_meanwhile_changes_nothing(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock, told: list[str]
    ) -> None:
        lease = grant()
        dog.watch(lease, renewer)
        renewer.answer = False
        renew = renewer.renew

        def release_first(leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
            lease.release()
            return renew(leases, seconds)

        renewer.renew = release_first  # type: ignore[method-assign]
        clock.now += 3.0
        dog.tick()
        assert (lease.lost, told) == (False, [])

    def test_a_lease_that_is_only_watched_is_told_of_its_end(
        self, dog: Watchdog, grant: Callable[..., Lease], clock: Clock, told: list[str]
    ) -> None:
        lease = grant()
        dog.watch(lease, None)
        assert dog.tick() == pytest.approx(validity(9.0))
        clock.now += 9.0
        dog.tick()
        assert (lease.lost, told) == (True, ["a"])

    def test_a_renewer_that_fails_costs_no_other_one_its_leases(
        self, dog: Watchdog, grant: Callable[..., Lease], clock: Clock, told: list[str]
    ) -> None:
        """Whichever of them has its turn first."""
        renewers = [ScriptedRenewer(clock) for _ in range(3)]
        renewers[1].answer = RuntimeError("a fault of our own")
        leases = [grant(token) for token in ("a", "b", "c")]
        for lease, renewer in zip(leases, renewers, strict=True):
            dog.watch(lease, renewer)
        clock.now += 3.0
        while not told:
            clock.now += min(dog.tick(), 0.5)
        assert told == ["b"]
        assert [lease.lost for lease in leases] == [False, True, False]
        assert len(renewers[1].asked) > 5, "it is tried again"

    def test_a_renewer_without_leases_is_closed(
        self, dog: Watchdog, grant: Callable[..., Lease], renewer: ScriptedRenewer, clock: Clock
    ) -> None:
        lease = grant()
        dog.watch(lease, renewer)
        clock.now += 3.0
        dog.tick()
        assert renewer.closed == 0
        dog.forget(lease)
        dog.tick()
        assert renewer.closed == 1


class TestThread:
    def test_there_is_one_for_all_leases_and_one_round_trip(self, recipe: RedisRecipe, client: redis.Redis) -> None:
        counted = type("Counted", (CountedConnection,), {})
        own = redis.Redis.from_url(recipe.url, connection_class=counted)
        leases = [RedisLock(own, f"many {index}", ttl=RENEWED).acquire() for index in range(50)]
        ends = [end_of(lease) for lease in leases]
        sent = counted.sent
        wait_for(lambda: all(end_of(lease) > end + 0.5 for lease, end in zip(leases, ends, strict=True)))
        assert sum(thread.name == "lock-renewal" for thread in threading.enumerate()) == 1
        assert counted.sent - sent < 20
        assert all(lease.release() for lease in leases)
        own.close()

    def test_an_uncontended_pair_neither_starts_nor_wakes_it(
        self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        with (
            RedisLock(client, "long", ttl=60.0).hold(),
            RedisLock(client, "short", ttl=RENEWED).hold() as lease,
        ):
            ends = end_of(lease)
            wait_for(lambda: end_of(lease) > ends + 0.5)

    def test_it_ends_by_itself_and_starts_again(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "now and then", ttl=RENEWED)
        for _ in range(2):
            lease = lock.acquire()
            assert renewing()
            lease.release()
            wait_for(lambda: not renewing())

    def test_an_on_lost_that_fails_does_not_end_it(self, client: redis.Redis) -> None:
        told: list[Lease] = []

        def fail(lease: Lease) -> None:
            told.append(lease)
            raise SystemExit

        other = RedisLock(client, "other", ttl=RENEWED).acquire()
        lease = RedisLock(client, "failing", ttl=0.3, renew=False, on_lost=fail).acquire()
        wait_for(lambda: told)
        ends = end_of(other)
        wait_for(lambda: end_of(other) > ends + 0.5)
        other.check()
        assert lease.lost
        assert told == [lease]
        other.release()

    def test_a_renewer_that_fails_does_not_end_it(
        self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = connection.Line.run
        failures = iter([True, True])

        def fail_twice(self: connection.Line, calls: Sequence[connection.Call], seconds: float) -> list[object]:
            if next(failures, False):
                raise RuntimeError("a fault of our own")
            return run(self, calls, seconds)

        monkeypatch.setattr(connection.Line, "run", fail_twice)
        with RedisLock(client, "survives", ttl=RENEWED).hold() as lease:
            ends = end_of(lease)
            wait_for(lambda: end_of(lease) > ends + 0.5)
        assert "a fault of our own" in caplog.text

    def test_a_child_forked_while_it_works_has_a_watchdog_of_its_own(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "forked", ttl=RENEWED)
        holding = threading.Event()
        forked = threading.Event()

        def hold_the_condition() -> None:
            with watchdog._condition:
                holding.set()
                forked.wait(PATIENCE)

        def body() -> str:
            with lock.hold(timeout=PATIENCE) as lease:
                ends = end_of(lease)
                wait_for(lambda: end_of(lease) > ends + 0.5)
            return "renewed"

        thread = threading.Thread(target=hold_the_condition)
        thread.start()
        holding.wait(PATIENCE)
        try:
            assert in_fork(body) == "renewed"
        finally:
            forked.set()
            thread.join()


class TestLoss:
    """The server fails while a lock is held. The client is redis-py's default: patient, with ten retries."""

    TTL = 1.5

    def hold(self, valkey: Valkey, ttl: float = TTL) -> tuple[Lease, list[float]]:
        told: list[float] = []
        client = redis.Redis(unix_socket_path=str(valkey.socket))
        lock = RedisLock(client, "lost", ttl=ttl, on_lost=lambda _: told.append(time.monotonic()))
        lease = lock.acquire()
        assert lease is not None
        return lease, told

    def test_the_holder_is_told_when_the_server_is_killed(self, own_valkey: Valkey) -> None:
        lease, told = self.hold(own_valkey)
        start = time.monotonic()
        own_valkey.child.kill()
        wait_for(lambda: told)
        assert told[0] - start < self.TTL + BUSY
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.check()
        assert len(told) == 1

    def test_the_holder_is_told_while_the_server_hangs(self, own_valkey: Valkey) -> None:
        lease, told = self.hold(own_valkey)
        start = time.monotonic()
        with paused(own_valkey.child.pid):
            wait_for(lambda: told)
            assert told[0] - start < self.TTL + BUSY
            with pytest.raises(LeaseLost):
                lease.check()
        assert len(told) == 1

    def test_the_holder_is_told_while_the_server_hangs_in_the_middle_of_a_renewal(self, own_valkey: Valkey) -> None:
        lease, told = self.hold(own_valkey)
        ends = end_of(lease)
        wait_for(lambda: end_of(lease) > ends + 0.1, "a first renewal, so that there is a connection to hang on")
        start = time.monotonic()
        with paused(own_valkey.child.pid):
            wait_for(lambda: told)
            assert told[0] - start < self.TTL + BUSY
        assert len(told) == 1

    def test_without_a_bound_a_server_that_hangs_would_delay_the_signal(
        self, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = connection.Line.run
        monkeypatch.setattr(connection.Line, "run", lambda line, calls, seconds: run(line, calls, SOCKET_TIMEOUT))
        lease, told = self.hold(own_valkey)
        ends = end_of(lease)
        wait_for(lambda: end_of(lease) > ends + 0.1)
        with paused(own_valkey.child.pid):
            wait_for(lambda: lease.lost)
            overdue = time.monotonic() + 0.5
            wait_for(lambda: time.monotonic() > overdue)
            assert told == []
        wait_for(lambda: told)

    def test_a_server_that_hangs_is_called_once_at_a_time_whatever_the_client_would_do(
        self, own_valkey: Valkey
    ) -> None:
        class Called(CountedConnection):
            calls = 0

            def _connect(self) -> Any:
                type(self).calls += 1
                return super()._connect()

        patient = Retry(NoBackoff(), 10)
        pool = redis.Redis.from_url(own_valkey.url, connection_class=Called, retry=patient).connection_pool
        with paused(own_valkey.child.pid), pytest.raises(redis.TimeoutError):
            connection.Line(pool).run([connection.Call("extend", ("a", "b"), ("token", 1000))], 0.4)
        assert Called.calls == 1

    def test_a_server_that_hangs_briefly_costs_nothing(self, own_valkey: Valkey) -> None:
        lease, told = self.hold(own_valkey, ttl=2 * self.TTL)  # so long that the tests may stand still for a second too
        ends = end_of(lease)
        wait_for(lambda: end_of(lease) > ends + 0.1)
        with paused(own_valkey.child.pid):
            wait_for(lambda: lease.remaining() < 0.6 * lease.ttl)
        wait_for(lambda: lease.remaining() > 0.7 * lease.ttl or told)
        assert told == []
        assert lease.release() is True

    def test_a_renewal_whose_connection_is_cut_is_tried_again(self, client: redis.Redis) -> None:
        told: list[Lease] = []
        with RedisLock(client, "cut", ttl=RENEWED, on_lost=told.append).hold() as lease:
            for _ in range(2):
                ends = end_of(lease)
                wait_for(lambda ends=ends: end_of(lease) > ends + 0.2)
                client.client_kill_filter(_type="normal", skipme=True)
        assert told == []

    def test_a_server_that_hangs_does_not_cost_the_locks_of_another(
        self, own_valkey: Valkey, client: redis.Redis
    ) -> None:
        with RedisLock(client, "healthy", ttl=self.TTL).hold() as healthy:
            hung, told = self.hold(own_valkey)
            with paused(own_valkey.child.pid):
                wait_for(lambda: told)
                ends = end_of(healthy)
                wait_for(lambda: end_of(healthy) > ends + 0.2)
            assert hung.lost
            healthy.check()

    def test_a_lock_that_somebody_else_holds_is_lost_before_the_time_is_over(self, client: redis.Redis) -> None:
        told: list[float] = []
        lock = RedisLock(client, "stolen", ttl=60.0, on_lost=lambda lease: told.append(lease._deadline))
        lease = lock.acquire()
        client.set("lock:{stolen}", "somebody else")
        watchdog._watched[lease.token].due = 0.0
        with watchdog._condition:
            watchdog._wakes_at = 0.0
            watchdog._condition.notify()
        wait_for(lambda: told)
        assert told[0] > time.monotonic() + 30.0
        assert lease.lost

    def test_an_error_that_the_server_answers_is_tried_again(
        self, client: redis.Redis, flawed: Callable[[str, str, str], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        flawed("extend", "local ttl", "error('not now') local ttl")
        lease = RedisLock(client, "refused", ttl=RENEWED).acquire()
        wait_for(lambda: lease.lost)
        assert caplog.text.count("not now") > 1

    def test_a_released_lease_is_renewed_no_more(self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        run, renewed = connection.Line.run, list[str]()

        def note(self: connection.Line, calls: Sequence[connection.Call], seconds: float) -> list[object]:
            renewed.extend(call.keys[0] for call in calls)
            return run(self, calls, seconds)

        monkeypatch.setattr(connection.Line, "run", note)
        with RedisLock(client, "other", ttl=RENEWED).hold() as other:
            lease = RedisLock(client, "released", ttl=RENEWED).acquire()
            lease.release()  # and kept: one that nobody refers to is not renewed anyway
            ends = end_of(other)
            wait_for(lambda: end_of(other) > ends + 0.5)
            assert set(renewed) == {"lock:{other}"}


def test_a_client_without_retries_needs_no_others(own_valkey: Valkey) -> None:
    client = redis.Redis.from_url(own_valkey.url, retry=Retry(NoBackoff(), 0), socket_timeout=0.2)
    with RedisLock(client, "plain", ttl=RENEWED).hold() as lease:
        ends = end_of(lease)
        wait_for(lambda: end_of(lease) > ends + 0.5)
