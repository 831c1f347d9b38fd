"""RedisLock and its server: round trips, keys, lost responses, kinds of clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.retry import Retry

from locking import Lease, LockTimeout, LockUnavailable, RedisLock, Redlock, force_release, held
from locking.redis.connection import ScriptCall
from locking.redis.lease import RedisLease
from locking.redis.waiting import GRACE
from servers.valkey import Valkey
from tests.locking.conformance import LONG, RENEWED
from tests.locking.support import (
    CLIENTS,
    Clock,
    CommandStats,
    CutConnection,
    Patch,
    Pool,
    acquired,
    paused,
    renew,
    run_threads,
)
from tests.waiting import WAIT_TIMEOUT, wait_for

Connect = Callable[..., redis.Redis]


@pytest.fixture
def connect(valkey: Valkey, client: redis.Redis) -> Iterator[Callable[..., redis.Redis]]:
    """Empty the server, and yield a function that makes further clients."""
    with ExitStack() as made:
        yield lambda **options: made.enter_context(redis.Redis.from_url(valkey.url, **options))


def without_retries(url: str) -> redis.Redis:
    """Return a client that tries to connect once. It has no short timeout, which a busy server would exceed."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0))


class TestRoundTrips:
    def test_a_pair_takes_two(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "pair")
        acquired(lock).release()
        stats = CommandStats(client)
        acquired(lock).release()
        # Two round trips, and the commands of their scripts.
        assert stats() == {"evalsha": 2, "time": 1, "get": 2, "set": 2, "del": 1, "exists": 2}

    def test_a_release_with_only_dead_waiters_only_deletes(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "pair")
        lock.acquire().release()
        lease = lock.acquire()
        client.zadd("lock:{pair}:waiters", {"a dead waiter": 1})
        stats = CommandStats(client)
        lease.release()
        assert stats() == {"evalsha": 1, "get": 1, "del": 1, "exists": 1, "time": 1, "zrem": 1, "zcount": 1}

    def test_a_refused_try_writes_nothing(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "pair")
        with lock.hold():
            before = client.info("persistence")["rdb_changes_since_last_save"]
            stats = CommandStats(client)
            assert lock.acquire(blocking=False) is None
            assert stats() == {"evalsha": 1, "set": 1, "time": 1, "get": 1, "lindex": 1, "pttl": 1}
            assert client.info("persistence")["rdb_changes_since_last_save"] == before


class TestKeys:
    def test_all_keys_are_under_one_hash_tag(self, client: redis.Redis, threads: Pool) -> None:
        lock = RedisLock(client, "tagged")
        with lock.hold():
            waiting = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
            wait_for(lambda: client.exists("lock:{tagged}:waiters"))
            keys = set(client.scan_iter())
            assert keys == {b"lock:{tagged}", b"lock:{tagged}:fence", b"lock:{tagged}:waiters"}
            assert all(client.pttl(key) > 0 for key in keys), "a key that does not expire"
        assert waiting.result(WAIT_TIMEOUT).release() is True

    def test_a_thread_may_be_called_anything(self, client: redis.Redis) -> None:
        def hold() -> None:
            threading.current_thread().name = "é \ud800 " * 100
            with RedisLock(client, "odd").hold():
                assert 100 <= len(client.get("lock:{odd}:fence")) < 150

        run_threads(hold)


class TestFence:
    def test_it_grows_after_the_clock_was_set_back(self, client: redis.Redis) -> None:
        ahead = 10**16 // 2
        client.set("lock:{fenced}:fence", ahead)
        lock = RedisLock(client, "fenced")
        fences = [lock.acquire().fence]
        client.delete("lock:{fenced}")
        fences.append(lock.acquire().fence)
        assert fences == [ahead + 1, ahead + 2]

    def test_the_fence_key_outlives_renewals(self, client: redis.Redis) -> None:
        lease = RedisLock(client, "fenced", ttl=20.0, renew=False).acquire()
        client.pexpire("lock:{fenced}:fence", 1000)
        lease.extend()
        assert client.pttl("lock:{fenced}:fence") > 100_000
        lease.release()

    def test_a_repeated_request_gives_the_same_fence(self, client: redis.Redis) -> None:
        lock = RedisLock(client, "fenced")
        lease = lock.acquire()
        client.pexpire("lock:{fenced}", 500)
        again = lock._ask(lease.token, deadline=0.0, waits=False)
        assert isinstance(again, Lease)
        assert again.fence == lease.fence
        assert client.pttl("lock:{fenced}") > 500
        lease.release()


class TestLostAnswers:
    def test_an_unanswered_request_is_undone(self, connect: Connect, client: redis.Redis) -> None:
        cut = type("Cut", (CutConnection,), {})
        lock = RedisLock(connect(connection_class=cut), "cut", ttl=LONG)
        lock.acquire().release()
        cut.cut_next = True
        with pytest.raises(LockUnavailable):
            lock.acquire()
        wait_for(lambda: not client.exists("lock:{cut}"), "the unanswered grant to be taken back")
        with RedisLock(client, "cut").hold():
            cut.cut_next = True
            with pytest.raises(LockUnavailable):
                lock.acquire()
            wait_for(lambda: not client.exists("lock:{cut}:waiters"))

    def test_a_hanging_server_undoes_the_grant(self, own_valkey: Valkey) -> None:
        client = without_retries(own_valkey.url)
        lock = RedisLock(client, "hung", ttl=60.0)
        lock.acquire().release()
        with paused(own_valkey.child.pid), pytest.raises(LockUnavailable):
            lock.acquire(timeout=0.2)
        wait_for(lambda: client.exists("lock:{hung}:fence"))
        wait_for(lambda: not client.exists("lock:{hung}"), "the grant that came too late to be taken back")

    @pytest.mark.parametrize(("ttl", "timeout"), [(60.0, 0.1), (0.5, None)])
    def test_a_hanging_server_is_waited_for_in_bounds(
        self, own_valkey: Valkey, ttl: float, timeout: float | None
    ) -> None:
        client = redis.Redis.from_url(own_valkey.url, socket_timeout=WAIT_TIMEOUT)
        RedisLock(client, "hung").acquire().release()  # Open the connection first, because the next TTL is short.
        lock = RedisLock(client, "hung", ttl=ttl)
        start = time.monotonic()
        with paused(own_valkey.child.pid), pytest.raises(LockUnavailable):
            lock.acquire(timeout=timeout)
        assert time.monotonic() - start < WAIT_TIMEOUT / 2

    def test_a_server_error_is_not_hidden(self, client: redis.Redis) -> None:
        client.lpush("lock:{taken}", "another use of the name")
        with pytest.raises(LockUnavailable, match="WRONGTYPE"):
            RedisLock(client, "taken").acquire()

    def test_a_late_confirmation_is_given_back(self, connect: Connect, client: redis.Redis, monkeypatch: Patch) -> None:
        clock = Clock()
        # The TTLs differ, so the waiter must confirm its grant.
        holder = RedisLock(client, "slow", ttl=2 * LONG).acquire()
        slow = RedisLock(client, "slow", ttl=LONG, clock=clock)
        send = RedisLease.extend_call

        def take_long(lease: RedisLease, *args: Any, **options: Any) -> ScriptCall:
            clock.now += LONG
            return send(lease, *args, **options)

        monkeypatch.setattr(RedisLease, "extend_call", take_long)
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(slow.acquire)
            wait_for(lambda: client.info("clients")["blocked_clients"] == 1)
            second = threads.submit(RedisLock(connect(), "slow", ttl=LONG).acquire, timeout=WAIT_TIMEOUT)
            wait_for(lambda: client.info("clients")["blocked_clients"] == 2)
            holder.release()
            with pytest.raises(LockUnavailable, match="too late"):
                first.result(WAIT_TIMEOUT)
            assert second.result().release() is True


@pytest.mark.parametrize("options", CLIENTS.values(), ids=CLIENTS)
class TestEveryKindOfClient:
    def test_it_locks_waits_is_woken_and_renews(self, connect: Connect, threads: Pool, options: dict[str, Any]) -> None:
        client = connect(**options)
        lock = RedisLock(client, "any", ttl=LONG)  # The TTL is so long that only a wake-up can end the wait.
        lease = lock.acquire()
        waiting = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
        wait_for(lambda: client.zcard("lock:{any}:waiters"))
        with RedisLock(client, "renewed", ttl=RENEWED).hold() as renewed:
            renew(renewed)
        assert lease.release() is True
        got = waiting.result(WAIT_TIMEOUT)
        assert got.fence > lease.fence
        assert got.release() is True

    def test_it_gives_up_waiting_in_time(self, connect: Connect, options: dict[str, Any]) -> None:
        lock = RedisLock(connect(**options), "any")

        def late_by() -> float:
            begun = time.monotonic()
            with pytest.raises(LockTimeout), lock.hold(timeout=0.3):
                pytest.fail("two hold it")
            late = time.monotonic() - begun - 0.3
            assert late >= 0
            return late

        with lock.hold():
            # If the server ended the wait, every try would be late by GRACE. So one quick try is enough.
            wait_for(lambda: late_by() < GRACE / 2)


class TestArguments:
    """All arguments of commands are text. hiredis can crash if a signal handler raises while it packs a number."""

    @pytest.mark.parametrize("kind", [RedisLock, Redlock])
    def test_all_are_text(self, connect: Connect, threads: Pool, kind: type[RedisLock] | type[Redlock]) -> None:
        packed: list[tuple[Any, ...]] = []

        class Noted(UnixDomainSocketConnection):
            def send_command(self, *args: Any, **options: Any) -> None:
                packed.append(args)
                super().send_command(*args, **options)

            def pack_commands(self, commands: Any) -> Any:
                packed.extend(commands := list(commands))
                return super().pack_commands(commands)

        noted = connect(connection_class=Noted)
        target: Any = noted if kind is RedisLock else [noted]
        lock = kind(target, "noted", ttl=RENEWED)

        def wait() -> None:
            with lock.hold(timeout=WAIT_TIMEOUT) as lease:
                lease.extend()
                renew(lease)
                held(noted)

        lease = lock.acquire()
        waiting = threads.submit(wait)
        wait_for(lambda: kind is Redlock or any(command[0] == "BLPOP" for command in packed))
        assert lease.release() is True
        waiting.result(WAIT_TIMEOUT)
        assert lock.acquire(timeout=0) is not None
        force_release(noted, "noted", by="a test")
        if kind is RedisLock:
            with pytest.raises(LockUnavailable, match="replicas"):
                RedisLock(noted, "copied", ttl=1.0, wait_for_replicas=1).acquire()
        of_locks = [command for command in packed if command[0] not in ("HELLO", "AUTH", "SELECT", "CLIENT")]
        sent = {"BLPOP", "SCAN", "WAIT", "LINDEX"} if kind is RedisLock else {"SCAN"}
        assert {str(command[0]).split()[0] for command in of_locks} >= {"EVALSHA", *sent}
        assert [part for command in of_locks for part in command if not isinstance(part, str | bytes)] == []
