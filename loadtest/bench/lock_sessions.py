"""Sessions: the connections of one lock implementation in one process, with a count of the commands sent."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import redis
import requests
from etcd3gw import Etcd3Client
from kazoo.client import KazooClient
from redis.connection import UnixDomainSocketConnection

from loadtest.bench.addresses import Addresses
from locking import Lease, Lock
from locking.postgres import session as postgres
from servers import zookeeper

TTL = 10.0
"""TTL in seconds of every lock that has a TTL."""

RENEWAL = "renewal"
"""Name of the Postgres connection that renews all locks of a process. Waiters send nothing on it."""

Acquire = Callable[[], Callable[[], object]]
"""Function that waits until the lock is held, and returns the function that releases it."""


@dataclass(frozen=True)
class LockSession:
    """The connections of one lock implementation in one process.

    Args:
        make: takes the name of a lock, and returns a function that acquires it.
        sent: returns how many commands this session has sent. None if commands cannot be counted.
    """

    make: Callable[[str], Acquire]
    sent: Callable[[], int] | None = None


OpenSession = Callable[..., LockSession]
"""Function that opens the session of a lock, given the `Addresses`, the `ExitStack` that closes it, and lock
options."""


def leased(make: Callable[[str], Lock], sent: Callable[[], int] | None = None) -> LockSession:
    """Return a session of locks that are subclasses of our `Lock`."""

    def lock_of(name: str) -> Acquire:
        lock = make(name)

        def acquire() -> Callable[[], object]:
            return cast(Lease, lock.acquire()).release  # Without a timeout, `acquire` waits until the lock is granted.

        return acquire

    return LockSession(lock_of, sent)


def plain(make: Callable[[str], Any], sent: Callable[[], int] | None = None) -> LockSession:
    """Return a session of third-party locks, which have `acquire` and `release` methods."""

    def lock_of(name: str) -> Acquire:
        lock = make(name)

        def acquire() -> Callable[[], object]:
            lock.acquire()
            release: Callable[[], object] = lock.release
            return release

        return acquire

    return LockSession(lock_of, sent)


def counting_client(url: str, stack: ExitStack) -> tuple[redis.Redis, Callable[[], int]]:
    """Return a client and a function that tells how many commands it has sent."""
    count = [0]

    class CountingConnection(UnixDomainSocketConnection):
        def send_command(self, *args: Any, **options: Any) -> None:
            count[0] += 1
            super().send_command(*args, **options)

        def pack_commands(self, commands: Any) -> Any:
            count[0] += len(commands)
            return super().pack_commands(commands)

    # No socket timeout: a waiter may block for a whole TTL, and redis-py would give up after 5 s.
    client = redis.Redis.from_url(url, connection_class=CountingConnection, max_connections=200, socket_timeout=None)
    stack.callback(client.close)
    return client, lambda: count[0]


def on_valkey(make: Callable[[redis.Redis, str], Lock]) -> OpenSession:
    def open_session(at: Addresses, stack: ExitStack) -> LockSession:
        client, sent = counting_client(at.valkeys[0], stack)
        return leased(lambda name: make(client, name), sent)

    return open_session


def on_zookeeper(make: Callable[[KazooClient, str], Lock]) -> OpenSession:
    def open_session(at: Addresses, stack: ExitStack) -> LockSession:
        client = KazooClient(at.zookeeper)
        client.start(timeout=10)
        stack.callback(client.close)
        stack.callback(client.stop)

        def sent() -> int:
            """Return how many packets the server has received on this connection, pings included."""
            connections = zookeeper.ask(at.zookeeper, "cons")
            (received,) = re.findall(rf"recved=(\d+),.*sid={client.client_id[0]:#x},", connections)
            return int(received)

        return leased(lambda name: make(client, name), sent)

    return open_session


def on_etcd(make: Callable[..., Lock]) -> OpenSession:
    def open_session(at: Addresses, stack: ExitStack) -> LockSession:
        host, port = at.etcd
        count = [0]

        def count_response(*args: Any, **options: Any) -> None:
            count[0] += 1

        # Locks copy the HTTP session together with its hook, so the hook counts all requests, including watches.
        http = stack.enter_context(requests.Session())
        http.hooks["response"].append(count_response)
        client = Etcd3Client(host=host, port=port, timeout=5, session=http)
        return leased(lambda name: make(client, name, ttl=TTL), lambda: count[0])

    return open_session


def on_postgres(make: Callable[[str, str], Lock]) -> OpenSession:
    def open_session(at: Addresses, stack: ExitStack) -> LockSession:
        count = [0]
        ask = postgres.PostgresSession.ask

        @functools.wraps(ask)
        def counting_ask(self: postgres.PostgresSession, *args: Any, **options: Any) -> Any:
            count[0] += self._lock != RENEWAL
            return ask(self, *args, **options)

        postgres.PostgresSession.ask = counting_ask  # type: ignore[method-assign]
        stack.callback(setattr, postgres.PostgresSession, "ask", ask)
        return leased(lambda name: make(at.postgres, name), lambda: count[0])

    return open_session
