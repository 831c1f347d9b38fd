"""The locks that are measured side by side: ours, and those that people use today."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis
import requests
from etcd3gw import Etcd3Client
from kazoo.client import KazooClient
from redis.connection import UnixDomainSocketConnection

from loadtest.bench.etcd3gw_recipe import Etcd3gwLock
from loadtest.bench.kazoo_recipe import KazooRecipeLock
from locking import FairRedisLock, Lease, Lock, RedisLock, Redlock
from locking.etcd import EtcdLock
from locking.local import ProcessLock, ThreadLock
from locking.postgres import AdvisoryLock, InsertLock, RowLock, add_row
from locking.postgres import session as postgres
from locking.reentrant import ReentrantLock
from locking.zookeeper import ZooKeeperLock
from servers import zookeeper

TTL = 10.0
"""Seconds, for every lock that has one."""

RENEWAL = "renewal"
"""What the connection is called over which a process renews all that it holds: no waiter sends anything there."""

Take = Callable[[], Callable[[], object]]
"""Waits until the lock is held, and returns what releases it."""


@dataclass(frozen=True)
class Addresses:
    """Where the servers are, for every process that takes part.

    Args:
        valkeys: URLs; the first is the one of the locks on a single server.
        etcd: host and port.
        folder: for the locks that live in files.
    """

    valkeys: Sequence[str]
    postgres: str
    zookeeper: str
    etcd: tuple[str, int]
    folder: Path


@dataclass(frozen=True)
class Session:
    """A contender's connections in one process.

    Args:
        make: gives the lock of a name.
        sent: how many commands this session has sent so far, and none of another's, where that can be counted.
    """

    make: Callable[[str], Take]
    sent: Callable[[], int] | None = None


Open = Callable[[Addresses, ExitStack], Session]


def ours(make: Callable[[str], Lock], sent: Callable[[], int] | None = None) -> Session:
    """A session of locks that keep our contract."""

    def take(name: str) -> Take:
        lock = make(name)

        def hold() -> Callable[[], object]:
            return cast(Lease, lock.acquire()).release  # without a timeout it waits until it is granted

        return hold

    return Session(take, sent)


def theirs(make: Callable[[str], Any], sent: Callable[[], int] | None = None) -> Session:
    """A session of locks with `acquire` and `release`."""

    def take(name: str) -> Take:
        lock = make(name)

        def hold() -> Callable[[], object]:
            lock.acquire()
            release: Callable[[], object] = lock.release
            return release

        return hold

    return Session(take, sent)


def counted(url: str, stack: ExitStack) -> tuple[redis.Redis, Callable[[], int]]:
    """A client, and how many commands it has sent."""
    count = [0]

    class Counted(UnixDomainSocketConnection):
        def send_command(self, *args: Any, **options: Any) -> None:
            count[0] += 1
            super().send_command(*args, **options)

        def pack_commands(self, commands: Any) -> Any:
            count[0] += len(commands)
            return super().pack_commands(commands)

    # No time limit for answers: who waits for a dead holder is blocked for the TTL, and redis-py gives up after 5 s.
    client = redis.Redis.from_url(url, connection_class=Counted, max_connections=200, socket_timeout=None)
    stack.callback(client.close)
    return client, lambda: count[0]


def on_valkey(kind: Callable[..., Lock]) -> Open:
    def opened(at: Addresses, stack: ExitStack) -> Session:
        client, sent = counted(at.valkeys[0], stack)
        return ours(lambda name: kind(client, name, ttl=TTL), sent)

    return opened


def reentrant(at: Addresses, stack: ExitStack) -> Session:
    client, sent = counted(at.valkeys[0], stack)
    return ours(lambda name: ReentrantLock(RedisLock(client, name, ttl=TTL)), sent)


def redlock(at: Addresses, stack: ExitStack) -> Session:
    clients = [counted(url, stack) for url in at.valkeys]
    return ours(
        # Eight processes share the machine with their five nodes: a moment without its CPUs is not a node that hangs.
        lambda name: Redlock([client for client, _ in clients], name, ttl=TTL, retries=10_000, node_timeout=2.0),
        lambda: sum(sent() for _, sent in clients),
    )


def on_zookeeper(kind: Callable[[KazooClient, str], Lock]) -> Open:
    def opened(at: Addresses, stack: ExitStack) -> Session:
        client = KazooClient(at.zookeeper)
        client.start(timeout=10)
        stack.callback(client.close)
        stack.callback(client.stop)

        def sent() -> int:
            """What the server says that it has received on this session's connection, its pings included."""
            connections = zookeeper.ask(at.zookeeper, "cons")
            (received,) = re.findall(rf"recved=(\d+),.*sid={client.client_id[0]:#x},", connections)
            return int(received)

        return ours(lambda name: kind(client, name), sent)

    return opened


def on_etcd(kind: Callable[..., Lock]) -> Open:
    def opened(at: Addresses, stack: ExitStack) -> Session:
        host, port = at.etcd
        count = [0]

        def answered(*args: Any, **options: Any) -> None:
            count[0] += 1

        # Locks copy the session with its hook, which sees each request that is being answered, watches included.
        http = stack.enter_context(requests.Session())
        http.hooks["response"].append(answered)
        client = Etcd3Client(host=host, port=port, timeout=5, session=http)
        return ours(lambda name: kind(client, name, ttl=TTL), lambda: count[0])

    return opened


def on_postgres(make: Callable[[str, str], Lock]) -> Open:
    def opened(at: Addresses, stack: ExitStack) -> Session:
        count = [0]
        ask = postgres.PostgresSession.ask

        @functools.wraps(ask)
        def counting(self: postgres.PostgresSession, *args: Any, **options: Any) -> Any:
            count[0] += self._lock != RENEWAL
            return ask(self, *args, **options)

        postgres.PostgresSession.ask = counting  # type: ignore[method-assign]
        stack.callback(setattr, postgres.PostgresSession, "ask", ask)
        return ours(lambda name: make(at.postgres, name), lambda: count[0])

    return opened


def row_lock(conninfo: str, name: str) -> RowLock:
    add_row(conninfo, name)
    return RowLock(conninfo, name)


def redis_py(at: Addresses, stack: ExitStack) -> Session:
    client, sent = counted(at.valkeys[0], stack)
    return theirs(lambda name: client.lock(name, timeout=TTL), sent)


def python_redis_lock(at: Addresses, stack: ExitStack) -> Session:
    import redis_lock  # a peer, installed for development only

    client, sent = counted(at.valkeys[0], stack)
    return theirs(lambda name: redis_lock.Lock(client, name, expire=int(TTL)), sent)


def pottery(at: Addresses, stack: ExitStack) -> Session:
    from pottery import Redlock as Theirs  # a peer, installed for development only

    client, sent = counted(at.valkeys[0], stack)
    return theirs(lambda name: Theirs(key=name, masters={client}, auto_release_time=TTL), sent)


def in_threads(at: Addresses, stack: ExitStack) -> Session:
    return ours(ThreadLock, lambda: 0)


def in_files(at: Addresses, stack: ExitStack) -> Session:
    return ours(lambda name: ProcessLock(at.folder, name), lambda: 0)


LOCKS: dict[str, Open] = {
    "redis": on_valkey(RedisLock),
    "fair": on_valkey(FairRedisLock),
    "reentrant": reentrant,
    "redlock": redlock,
    "zookeeper": on_zookeeper(ZooKeeperLock),
    "etcd": on_etcd(EtcdLock),
    "advisory": on_postgres(AdvisoryLock),
    "row": on_postgres(row_lock),
    "insert": on_postgres(lambda conninfo, name: InsertLock(conninfo, name, ttl=TTL)),
    "process": in_files,
    "thread": in_threads,
}
PEERS: dict[str, Open] = {
    "redis-py": redis_py,
    "python-redis-lock": python_redis_lock,
    "pottery": pottery,
    "kazoo": on_zookeeper(KazooRecipeLock),
    "etcd3gw": on_etcd(Etcd3gwLock),
}
ALL = LOCKS | PEERS

ON_ZOOKEEPER = ("zookeeper", "kazoo")
"""They need a server that comes with no package of Python's."""


@contextmanager
def session(name: str, at: Addresses) -> Iterator[Session]:
    """The connections of a contender, for as long as they are needed."""
    with ExitStack() as stack:
        yield ALL[name](at, stack)
