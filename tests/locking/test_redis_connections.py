"""Connections of RedisLock: waiters share a few, and a release never waits for one of the client's pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from locking import LockUnavailable, RedisLock
from locking.local import QueuePlace, _queues
from locking.redis import own_connections as own_module
from locking.redis.own_connections import MOST_IDLE, own_connections
from servers.valkey import Valkey
from tests.locking.conformance import LONG, RENEWED
from tests.locking.support import acquired, paused, renew, run_threads, socket_of
from tests.waiting import WAIT_TIMEOUT, wait_for

WAITERS = 60
"""Number of waiters. It is above `MOST_IDLE` + 10, so a test fails if each waiter leaves a connection open."""
POOL_TIMEOUT = 20


@pytest.fixture
def default(valkey: Valkey, client: redis.Redis) -> Iterator[redis.Redis]:
    """Yield a client with redis-py's own limit of 100 connections."""
    with redis.Redis(unix_socket_path=socket_of(valkey.url)) as made:
        yield made


@pytest.fixture
def tiny(valkey: Valkey, client: redis.Redis) -> Iterator[redis.Redis]:
    """Yield a client with four connections. Callers wait at most `POOL_TIMEOUT` seconds for one of them."""
    pool = redis.BlockingConnectionPool.from_url(valkey.url, max_connections=4, timeout=POOL_TIMEOUT)
    with redis.Redis(connection_pool=pool) as made:
        yield made


def connected(client: redis.Redis) -> int:
    return int(client.info("clients")["connected_clients"])


def listed(client: redis.Redis) -> int:
    return int(client.zcard("lock:{crowd}:waiters"))


def asleep(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


class TestManyWaiters:
    @pytest.mark.parametrize("kind", ["default", "tiny"])
    def test_they_share_a_connection_and_the_holder_releases(
        self, client: redis.Redis, kind: str, request: pytest.FixtureRequest
    ) -> None:
        crowded: redis.Redis = request.getfixturevalue(kind)
        lock = RedisLock(crowded, "crowd", ttl=60.0, renew=False)
        turns: list[int] = []
        before = connected(client)

        def wait() -> None:
            with lock.hold(timeout=2 * WAIT_TIMEOUT) as lease:
                turns.append(lease.fence or 0)

        with ThreadPoolExecutor(WAITERS) as threads:
            lease = lock.acquire()
            waiting = [threads.submit(wait) for _ in range(WAITERS)]
            wait_for(lambda: (queued(), asleep(client)) == (WAITERS, 1))
            assert crowded.ping()
            began = time.monotonic()
            assert lease.release() is True
            assert time.monotonic() - began < POOL_TIMEOUT / 2, "it waited for a connection of the pool"
            for one in waiting:
                one.result(WAIT_TIMEOUT)
        assert turns == sorted(turns)
        assert len(set(turns)) == WAITERS
        assert connected(client) <= before + MOST_IDLE + 10

    @pytest.mark.parametrize("asks_first", [True, False])
    def test_whoever_becomes_first_is_listed_before_it_sleeps(
        self, default: redis.Redis, client: redis.Redis, asks_first: bool
    ) -> None:
        """The first waiter of a process is listed in Redis before it sleeps; a release wakes only listed waiters.

        A waiter that has not queried the lock, or whose entry in the list has expired, queries the lock first.
        """
        lock, place = RedisLock(default, "crowd", ttl=0.5), QueuePlace((default.connection_pool, "lock:{crowd}"))
        with ThreadPoolExecutor(1) as threads, place:
            holder = RedisLock(client, "crowd", ttl=60.0).acquire()
            if not asks_first:
                place.wait_for_turn(time.monotonic())
            late = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
            if asks_first:
                wait_for(lambda: asleep(client) == 1)
            else:
                wait_for(lambda: queued() == 2)
                assert listed(client) == 0
                place.leave()
                wait_for(lambda: asleep(client) == 1)
            assert listed(client) == 1
            assert holder.release() is True
            assert late.result(WAIT_TIMEOUT).release() is True

    def test_a_fork_starts_with_connections_of_its_own(self, default: redis.Redis) -> None:
        RedisLock(default, "crowd").acquire().release()
        own = own_connections(default.connection_pool)
        assert len(own._idle) == 1
        own._pid = 0  # as in a forked child
        assert own.take_idle() is None


class TestUsedUpPool:
    def test_it_stops_neither_acquire_nor_renewal_nor_release(self, tiny: redis.Redis) -> None:
        pool = tiny.connection_pool
        with ExitStack() as used:
            for _ in range(pool.max_connections):
                used.callback(pool.release, pool.get_connection())
            lock = RedisLock(tiny, "pool", ttl=RENEWED)
            with lock.hold() as lease:
                renew(lease)
                assert run_threads(lambda: lock.acquire(timeout=0.1)) == [None]
            assert lease.release() is False

    def test_idle_connections_are_few(self, default: redis.Redis, client: redis.Redis) -> None:
        own, pool = own_connections(default.connection_pool), default.connection_pool
        opened = [own_module.open_connection(pool) for _ in range(MOST_IDLE + 5)]
        for connection in opened:
            own.put(connection)
        assert sum(connection.is_connected for connection in opened) == MOST_IDLE


class TestInterrupted:
    """A connection is closed with its last reference, so an interrupted call does not use up the pool."""

    @pytest.mark.parametrize("method", ["send_command", "read_response"])
    def test_a_call_leaves_no_connection_open(self, client: redis.Redis, valkey: Valkey, method: str) -> None:
        class Interrupted(redis.UnixDomainSocketConnection):
            armed = False

        def interrupt(self: Any, *args: Any, **options: Any) -> Any:
            if Interrupted.armed:
                Interrupted.armed = False
                raise KeyboardInterrupt
            return getattr(redis.UnixDomainSocketConnection, method)(self, *args, **options)

        setattr(Interrupted, method, interrupt)
        with redis.Redis.from_url(valkey.url, connection_class=Interrupted, max_connections=1) as single:
            lock = RedisLock(single, "cut short", ttl=LONG)
            lock.acquire().release()
            before = connected(client)
            for _ in range(3):
                Interrupted.armed = True
                with pytest.raises(KeyboardInterrupt):
                    lock.acquire()
                wait_for(lambda: connected(client) <= before, "the connection to be closed")
            acquired(lock, timeout=0).release()

    def test_a_failover_closes_the_idle_ones(self, own_valkey: Valkey) -> None:
        with redis.Redis.from_url(own_valkey.url, retry=None) as client:
            lock = RedisLock(client, "gone")
            lock.acquire().release()
            own = own_connections(client.connection_pool)
            own.put(own_module.open_connection(client.connection_pool))
            assert len(own._idle) == 2
            # The lock limits this call itself. A short timeout of the client would also fail calls to a busy server.
            with paused(own_valkey.child.pid), pytest.raises(LockUnavailable):
                lock.acquire(timeout=0.1)
            assert own._idle == []


def queued() -> int:
    """Return how many threads of this process wait for the lock."""
    return sum(len(queue) for (_, key), queue in list(_queues.items()) if key == "lock:{crowd}")
