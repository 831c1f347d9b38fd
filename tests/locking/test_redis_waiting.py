"""How waiters of a RedisLock sleep: quietly, woken by the release, and never forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import redis

from locking import Lease, LockUnavailable, RedisLock, force_release
from locking._ids import new_token
from locking.lease import validity
from locking.redis.lock import Contended
from locking.redis.waiting import Waiter
from tests.locking import actors
from tests.locking.conformance import BUSY
from tests.locking.support import Clock, CommandStats, CountedConnection, RedisRecipe, paused, process, run_threads
from tests.waiting import PATIENCE, wait_for

KEY, WAITERS, WAKE = "lock:{wait}", "lock:{wait}:waiters", "lock:{wait}:wake"

PUSH_THE_GRANT = "redis.call('RPUSH', KEYS[4], grant)"
"""The line of release.lua without which nobody is woken."""

OVER = "1 1 over"
"""A grant whose time is over: of a millisecond, long ago."""


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


def fence_of_the_holder(client: redis.Redis) -> int:
    return int(client.get(f"{KEY}:fence").split()[0])


class Sleeper:
    """A waiter that is asleep, step by step: registered, blocked, and given up when the test says so."""

    def __init__(self, lock: RedisLock) -> None:
        token = new_token()
        assert not isinstance(lock._ask(token, float("inf"), waits=True), Lease)
        self.bell = lock._bell(token)
        leave = partial(lock._leave, token)
        self.waiter = Waiter(lock._client.connection_pool, lock.name, self.bell, lock._wake, leave, lock._give_up)
        assert self.waiter.wait(0.01, 60.0) is None

    def give_up(self) -> None:
        self.waiter.__exit__(None, None, None)


class Timed(CountedConnection):
    """Notes when each command was sent. Subclass it, with a list of its own."""

    sent_at: ClassVar[list[float]]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self.sent_at += [] if self.greeting else [time.monotonic()]
        super().send_packed_command(command, check_health)


class TestQuiet:
    TTL = 0.5

    def test_an_idle_waiter_sends_at_most_one_command_a_ttl(self, recipe: RedisRecipe, client: redis.Redis) -> None:
        timed = type("Idle", (Timed,), {"sent_at": []})
        # Whoever holds it does so for longer than any machine stands still.
        with RedisLock(client, "wait", ttl=60.0).hold():
            lock = RedisLock(redis.Redis.from_url(recipe.url, connection_class=timed), "wait", ttl=self.TTL)
            thread = threading.Thread(target=take_turn, args=(lock,))
            thread.start()
            wait_for(lambda: blocked(client) == 1)
            assert min(self.pauses(timed)) > 0.99 * self.TTL
        thread.join()

    def test_a_polling_waiter_sends_more(self, recipe: RedisRecipe, client: redis.Redis) -> None:
        timed = type("Polling", (Timed,), {"sent_at": []})
        client.set("polled", "held")
        lock = redis.Redis.from_url(recipe.url, connection_class=timed).lock("polled", timeout=self.TTL)
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        assert min(self.pauses(timed)) < 0.99 * self.TTL
        client.delete("polled")
        thread.join()

    @staticmethod
    def pauses(timed: type[Timed]) -> list[float]:
        """Between one command and the next, of a waiter who has begun to wait."""
        begun = len(timed.sent_at)
        wait_for(lambda: len(timed.sent_at) > begun + 4)
        return [after - before for before, after in pairwise(timed.sent_at[begun:])]


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
        monkeypatch.setattr("locking.redis.lock.request", lambda *args, **options: [0, left])
        assert lock._ask(new_token(), float("inf"), waits=True).pause == pause


class TestHandOver:
    """A release with waiters is a grant: one of them holds the lock from then on."""

    def test_the_one_that_has_slept_for_longest_is_next(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        lease = lock.acquire()
        turns = []
        for asleep in range(1, 6):
            turns.append(threads.submit(take_turn, lock))
            wait_for(lambda count=asleep: blocked(client) == count)
        lease.release()
        fences = [turn.result(PATIENCE) for turn in turns]
        assert fences == sorted(set(fences))
        assert not client.exists(KEY, WAITERS, WAKE)

    def test_a_newcomer_cannot_overtake(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        assert self.overtakes(lock, client, threads) is False

    def test_without_the_hand_over_a_newcomer_overtakes(
        self,
        lock: RedisLock,
        client: redis.Redis,
        threads: ThreadPoolExecutor,
        flawed: Callable[[str, str, str], None],
    ) -> None:
        flawed("release", "redis.call('SET', KEYS[1], grant, 'PX', ttl)", "redis.call('DEL', KEYS[1])")
        flawed("acquire", "not holder and waited_for", "false")
        assert self.overtakes(lock, client, threads) is True

    @staticmethod
    def overtakes(lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor) -> bool:
        lease = lock.acquire()
        turns: list[Future[Any]] = []

        def hold_until_told() -> None:
            with lock.hold(timeout=2 * PATIENCE):
                told.wait(PATIENCE)

        told = threading.Event()
        turns.append(threads.submit(hold_until_told))
        wait_for(lambda: blocked(client) == 1)
        lease.release()
        newcomer = lock.acquire(blocking=False)
        if newcomer is not None:
            newcomer.release()
        told.set()
        turns[0].result(PATIENCE)
        return newcomer is not None

    def test_the_order_of_arrival_outlives_a_holder_that_dies(
        self, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        """The last to come looks first: the lock goes to the first all the same."""
        assert self.served_after_a_crash(client, threads) == [0, 1, 2]

    def test_without_handing_on_what_has_expired_it_does_not(
        self, client: redis.Redis, threads: ThreadPoolExecutor, flawed: Callable[[str, str, str], None]
    ) -> None:
        flawed("acquire", "not holder and waited_for", "false")
        assert self.served_after_a_crash(client, threads) == [2, 0, 1]

    def test_a_try_does_not_overtake_who_sleeps_when_a_holder_has_died(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        client.set(KEY, "a holder who dies")
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 1)
        client.delete(KEY)
        assert lock.acquire(blocking=False) is None
        assert turn.result(PATIENCE) > 0

    @staticmethod
    def served_after_a_crash(client: redis.Redis, threads: ThreadPoolExecutor) -> list[int]:
        client.set(KEY, "a holder who dies")
        served: list[int] = []

        def turn(place: int, ttl: float) -> None:
            with RedisLock(client, "wait", ttl=ttl).hold(timeout=2 * PATIENCE):
                served.append(place)

        turns = []
        for place, ttl in enumerate((60.0, 60.0, 0.5)):  # who has the shortest TTL looks first
            turns.append(threads.submit(turn, place, ttl))
            wait_for(lambda count=place + 1: blocked(client) == count)
        client.delete(KEY)
        for one in turns:
            one.result(PATIENCE)
        return served

    def test_one_grant_at_a_time_waits_for_a_waiter(self, lock: RedisLock, client: redis.Redis) -> None:
        lease = lock.acquire()
        for _ in range(3):
            lock._ask(new_token(), float("inf"), waits=True)
        lease.release()
        force_release(client, "wait", by="who makes a second grant")
        assert client.lrange(WAKE, 0, -1) == [client.get(KEY)]
        assert 0 < client.pexpiretime(WAKE) <= client.pexpiretime(KEY)

    def test_what_nobody_was_awake_to_take_goes_to_whoever_asks(self, lock: RedisLock, client: redis.Redis) -> None:
        fence = self.left_lying(lock)
        with lock.hold(timeout=0) as lease:
            assert lease.fence > fence
            assert not client.exists(WAKE)
            assert client.get(KEY).decode() == lease.token

    def test_who_is_not_asleep_yet_can_be_overtaken(
        self, lock: RedisLock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
    ) -> None:
        lease = lock.acquire()
        sleep, overtakers = Waiter.wait, list[int]()

        def overtaken(self: Waiter, seconds: float, left: float) -> str | None:
            if not overtakers:
                lease.release()
                with lock.hold(timeout=0) as overtaker:
                    overtakers.append(overtaker.fence)
            return sleep(self, seconds, left)

        monkeypatch.setattr(Waiter, "wait", overtaken)
        assert threads.submit(take_turn, lock).result(PATIENCE) > overtakers[0]

    def test_a_try_is_refused_once_when_holder_and_waiter_have_died(self, lock: RedisLock, client: redis.Redis) -> None:
        lock.acquire()
        lock._ask("a waiter who dies", float("inf"), waits=True)
        client.delete(KEY)
        assert lock.acquire(blocking=False) is None
        assert lock.acquire(blocking=False) is not None

    def test_without_that_it_lies_there_for_its_ttl(
        self, lock: RedisLock, flawed: Callable[[str, str, str], None]
    ) -> None:
        flawed("acquire", "redis.call('LINDEX', KEYS[4], 0) == holder", "false")
        self.left_lying(lock)
        assert lock.acquire(blocking=False) is None

    @staticmethod
    def left_lying(lock: RedisLock) -> int:
        """Release it while somebody is on the list of waiters, but not asleep."""
        with lock.hold() as lease:
            lock._ask(new_token(), float("inf"), waits=True)
            return lease.fence

    def test_a_grant_that_comes_before_the_waiter_sleeps_is_not_missed(
        self, lock: RedisLock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
    ) -> None:
        lease = lock.acquire()
        sleep = Waiter.wait

        def release_first(self: Waiter, seconds: float, left: float) -> str | None:
            lease.release()
            return sleep(self, seconds, left)

        monkeypatch.setattr(Waiter, "wait", release_first)
        assert threads.submit(take_turn, lock).result(PATIENCE) > lease.fence

    def test_without_the_grant_a_waiter_sleeps_on(
        self,
        lock: RedisLock,
        client: redis.Redis,
        threads: ThreadPoolExecutor,
        flawed: Callable[[str, str, str], None],
    ) -> None:
        flawed("release", PUSH_THE_GRANT, "")
        lease = lock.acquire()
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 1)
        lease.release()
        assert client.zcard(WAITERS) == blocked(client) == 1
        assert client.get(KEY).decode() != lease.token
        client.rpush(WAKE, client.get(KEY))
        turn.result(PATIENCE)

    def test_a_timeout_counts_in_all_however_often_it_is_woken(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        with lock.hold():
            start = time.monotonic()
            attempt = threads.submit(lock.acquire, timeout=0.5)
            wakes = 0
            while not attempt.done():  # for ever, if each wake began the wait anew
                if not client.exists(WAKE):
                    client.rpush(WAKE, OVER)
                    wakes += 1
            assert attempt.result() is None
            assert time.monotonic() - start >= 0.5
            assert wakes > 5

    def test_who_is_woken_leaves_the_list_with_its_lease(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        """Otherwise its release would grant the lock to nobody."""
        lease = lock.acquire()
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 1)
        lease.release()
        turn.result(PATIENCE)
        assert set(client.scan_iter()) == {b"lock:{wait}:fence"}


class TestTimeOfAGrant:
    """How long ago a release has granted the lock, only the server knows; that it was after our request, we know."""

    def handed(self, lock: RedisLock, client: redis.Redis) -> tuple[str, str, Contended]:
        """A grant, as a waiter would pop it, the waiter's token, and its refused request."""
        with RedisLock(client, "wait", ttl=30.0).hold():
            token = new_token()
            refused = lock._ask(token, float("inf"), waits=True)
            assert isinstance(refused, Contended)
        return client.lpop(WAKE).decode(), token, refused

    def test_a_fresh_one_is_taken_as_it_is_counted_from_the_request(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "wait", ttl=30.0)
        grant, token, refused = self.handed(lock, client)
        stats = CommandStats(client)
        lease = lock._accept(grant, token, refused.asked)
        assert lease._deadline == refused.asked + validity(30.0)
        assert stats() == {}
        assert lease.release() is True

    def test_an_old_one_is_extended_first(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "wait", ttl=30.0)
        grant, token, refused = self.handed(lock, client)
        lease = lock._accept(grant, token, refused.asked - 15.0)
        assert lease.remaining() > 29.0
        assert lease.release() is True

    def test_one_of_a_shorter_ttl_is_extended_first(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "wait", ttl=60.0)
        grant, token, refused = self.handed(lock, client)
        lease = lock._accept(grant, token, refused.asked)
        assert client.pttl(KEY) > 50_000
        assert lease.remaining() > 50
        assert lease.release() is True

    def test_one_of_a_longer_ttl_is_shortened(self, client: redis.Redis) -> None:
        """Otherwise a crash of this holder would keep the lock for as long as the one before him has asked for."""
        lock = RedisLock(client, "wait", ttl=2.0)
        grant, token, refused = self.handed(lock, client)
        lease = lock._accept(grant, token, refused.asked)
        assert 0 < client.pttl(KEY) <= 2000
        assert lease.release() is True

    def test_one_that_comes_while_its_waiter_looks_again_counts_from_before_its_sleep(
        self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pop stays blocked while the waiter asks again: what it brings may be older than that request."""
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

    def test_one_that_cannot_be_held_goes_to_the_next(
        self, client: redis.Redis, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = RedisLock(client, "wait", ttl=60.0, renew=False)
        lease = plain.acquire()
        renews = threads.submit(take_turn, RedisLock(client, "wait", ttl=60.0))
        wait_for(lambda: blocked(client) == 1)
        turn = threads.submit(take_turn, plain)
        wait_for(lambda: blocked(client) == 2)

        def fail(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", fail)
        lease.release()
        with pytest.raises(RuntimeError, match="new thread"):
            renews.result(PATIENCE)
        assert turn.result(PATIENCE) > lease.fence
        assert not client.exists(KEY, WAITERS, WAKE)


class TestLateGrant:
    """Whoever pops a grant holds the lock, also when it has just decided to wait no longer."""

    def test_one_that_comes_with_the_end_of_the_timeout_is_taken(
        self, lock: RedisLock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = lock.acquire()
        sleep = Waiter.wait

        def time_is_up(self: Waiter, seconds: float, left: float) -> str | None:
            assert sleep(self, 0.01, left) is None
            lease.release()
            wait_for(lambda: blocked(client) == 0)
            return None

        monkeypatch.setattr(Waiter, "wait", time_is_up)
        late = lock.acquire(timeout=0.5)
        assert late is not None
        assert late.fence > lease.fence
        assert late.release() is True

    def test_one_that_nobody_wants_any_more_goes_to_the_next(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        lease, sleeper, turn = self.handed_to_a_sleeper(lock, client, threads)
        sleeper.give_up()
        assert turn.result(PATIENCE) > lease.fence

    def test_one_that_is_in_hand_when_its_waiter_is_interrupted_goes_to_the_next(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease, accept = lock.acquire(), RedisLock._accept
        hit: list[str] = []

        def interrupted(self: RedisLock, grant: str, *args: Any, **options: Any) -> Any:
            if not hit:
                hit.append(grant)
                raise KeyboardInterrupt
            return accept(self, grant, *args, **options)

        monkeypatch.setattr(RedisLock, "_accept", interrupted)
        first = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 1)
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 2)
        lease.release()
        assert turn.result(PATIENCE) > lease.fence
        assert isinstance(first.exception(PATIENCE), KeyboardInterrupt)

    def test_without_giving_it_back_the_next_one_sleeps_on(
        self, lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        lease, sleeper, turn = self.handed_to_a_sleeper(lock, client, threads)
        sleeper.waiter._give_up = lambda grant: None
        sleeper.give_up()
        assert (client.zcard(WAITERS), blocked(client)) == (1, 1)
        client.rpush(WAKE, client.get(KEY))
        assert turn.result(PATIENCE) > lease.fence

    @staticmethod
    def handed_to_a_sleeper(
        lock: RedisLock, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> tuple[Lease, Sleeper, Future[int]]:
        lease = lock.acquire()
        sleeper = Sleeper(lock)
        turn = threads.submit(take_turn, lock)
        wait_for(lambda: blocked(client) == 2)
        lease.release()
        wait_for(lambda: blocked(client) == 1)
        return lease, sleeper, turn

    def test_one_who_has_given_up_takes_no_later_grant(
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

    def test_one_who_dies_when_woken_delays_the_others_by_a_ttl_at_most(
        self, client: redis.Redis, recipe: RedisRecipe, threads: ThreadPoolExecutor
    ) -> None:
        lock = RedisLock(client, "wait", ttl=0.5)
        lease = lock.acquire()
        with process(actors.die_when_woken, recipe, "wait", {"ttl": 0.5}) as (child, _):
            wait_for(lambda: blocked(client) == 1)
            turn = threads.submit(take_turn, lock)
            wait_for(lambda: blocked(client) == 2)
            lease.release()
            assert turn.result(PATIENCE) > lease.fence
            child.join()
            assert child.exitcode == 9

    def test_one_who_is_stopped_costs_the_others_the_ttl_of_the_release_and_a_look(
        self, client: redis.Redis, recipe: RedisRecipe, threads: ThreadPoolExecutor
    ) -> None:
        ttl = 0.5
        lock = RedisLock(client, "wait", ttl=ttl)
        lease = lock.acquire()
        with process(actors.wait_and_hold, recipe, "wait", {"ttl": ttl}) as (child, pipe):
            wait_for(lambda: blocked(client) == 1)
            turn = threads.submit(take_turn, lock)
            wait_for(lambda: blocked(client) == 2)
            with paused(child.pid):
                released = time.monotonic()
                lease.release()
                fence = turn.result(PATIENCE)
                assert time.monotonic() - released < 2 * ttl + BUSY
                assert fence > lease.fence
            # Whoever goes on after that does not take what was handed to him then for a lock.
            assert (pipe.recv(), pipe.recv()) == ("waiting", fence_of_the_holder(client))
            pipe.send("release")
            assert pipe.recv() is True

    def test_one_who_is_stopped_costs_the_others_a_long_ttl_if_the_release_had_one(
        self, client: redis.Redis, recipe: RedisRecipe
    ) -> None:
        lease = RedisLock(client, "wait", ttl=60.0).acquire()
        with process(actors.wait_and_hold, recipe, "wait", {"ttl": 0.5}) as (child, _):
            wait_for(lambda: blocked(client) == 1)
            with paused(child.pid):
                lease.release()
                assert RedisLock(client, "wait", ttl=0.5).acquire(timeout=2.0) is None

    def test_one_who_looks_by_himself_and_is_granted_takes_no_later_grant(
        self, client: redis.Redis, threads: ThreadPoolExecutor
    ) -> None:
        client.set(KEY, "a holder who dies", px=300)
        turns = [threads.submit(take_turn, RedisLock(client, "wait", ttl=60.0)) for _ in range(12)]
        fences = [turn.result(PATIENCE) for turn in turns]  # the first by its timer, all others by a grant
        assert len(set(fences)) == 12
        assert blocked(client) == 0


class TestLog:
    """Who waits is written to no log: with `appendfsync always` each entry costs everybody a wait for the disk."""

    def test_waiting_writes_nothing_to_the_log(self, lock: RedisLock, client: redis.Redis) -> None:
        assert self.logged(lock, client) == 0

    def test_without_saying_so_it_does(
        self, lock: RedisLock, client: redis.Redis, flawed: Callable[[str, str, str], None]
    ) -> None:
        flawed("acquire", "redis.set_repl(redis.REPL_NONE)", "")
        assert self.logged(lock, client) > 0

    @staticmethod
    def logged(lock: RedisLock, client: redis.Redis) -> int:
        """How many bytes a waiter adds to the append-only file."""
        with lock.hold():
            before = client.info("persistence")["aof_current_size"]
            sleeper = Sleeper(lock)
            after = client.info("persistence")["aof_current_size"]
            sleeper.give_up()
        return int(after) - int(before)


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
