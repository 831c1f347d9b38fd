"""The contenders of the lock benchmark: our locks, and widely used alternatives.

`redisson` is the protocol of Redisson, written in Python, because the library itself is for Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from loadtest.bench.addresses import Addresses
from loadtest.bench.etcd3gw_recipe import Etcd3gwLock
from loadtest.bench.kazoo_recipe import KazooRecipeLock
from loadtest.bench.lock_sessions import (
    TTL,
    LockSession,
    OpenSession,
    counting_client,
    leased,
    on_etcd,
    on_postgres,
    on_valkey,
    on_zookeeper,
    plain,
)
from loadtest.bench.redisson_recipe import RedissonRecipeLock
from locking import FairRedisLock, RedisLock
from locking.etcd import EtcdLock
from locking.local import ProcessLock, ThreadLock
from locking.postgres import AdvisoryLock, InsertLock, RowLock, add_row
from locking.redis.redlock import Redlock
from locking.reentrant import ReentrantLock
from locking.zookeeper import ZooKeeperLock


def redlock(at: Addresses, stack: ExitStack, **options: Any) -> LockSession:
    clients = [counting_client(url, stack) for url in at.valkeys]
    return leased(
        # Use a long node timeout: nodes and clients share this machine, and a busy node must not count as hanging.
        lambda name: Redlock(
            [client for client, _ in clients], name, ttl=TTL, retries=10_000, node_timeout=2.0, **options
        ),
        lambda: sum(sent() for _, sent in clients),
    )


def row_lock(conninfo: str, name: str) -> RowLock:
    add_row(conninfo, name)
    return RowLock(conninfo, name)


def process_lock(at: Addresses, stack: ExitStack) -> LockSession:
    return leased(lambda name: ProcessLock(at.folder, name), lambda: 0)


def thread_lock(at: Addresses, stack: ExitStack) -> LockSession:
    return leased(ThreadLock, lambda: 0)


def redis_py(at: Addresses, stack: ExitStack) -> LockSession:
    client, sent = counting_client(at.valkeys[0], stack)
    return plain(lambda name: client.lock(name, timeout=TTL), sent)


def python_redis_lock(at: Addresses, stack: ExitStack) -> LockSession:
    import redis_lock  # installed for development only

    client, sent = counting_client(at.valkeys[0], stack)
    return plain(lambda name: redis_lock.Lock(client, name, expire=int(TTL)), sent)


def pottery(at: Addresses, stack: ExitStack) -> LockSession:
    from pottery import Redlock as PotteryRedlock  # installed for development only

    client, sent = counting_client(at.valkeys[0], stack)
    return plain(lambda name: PotteryRedlock(key=name, masters={client}, auto_release_time=TTL), sent)


LOCKS: dict[str, OpenSession] = {
    "redis": on_valkey(lambda client, name: RedisLock(client, name, ttl=TTL)),
    "fair": on_valkey(lambda client, name: FairRedisLock(client, name, ttl=TTL)),
    "reentrant": on_valkey(lambda client, name: ReentrantLock(RedisLock(client, name, ttl=TTL))),
    "redlock": redlock,
    "zookeeper": on_zookeeper(ZooKeeperLock),
    "etcd": on_etcd(EtcdLock),
    "advisory": on_postgres(AdvisoryLock),
    "row": on_postgres(row_lock),
    "insert": on_postgres(lambda conninfo, name: InsertLock(conninfo, name, ttl=TTL)),
    "process": process_lock,
    "thread": thread_lock,
}
PEERS: dict[str, OpenSession] = {
    "redis-py": redis_py,
    "python-redis-lock": python_redis_lock,
    "pottery": pottery,
    "redisson": on_valkey(lambda client, name: RedissonRecipeLock(client, name, ttl=TTL)),
    "kazoo": on_zookeeper(KazooRecipeLock),
    "etcd3gw": on_etcd(Etcd3gwLock),
}
ALL = LOCKS | PEERS


@contextmanager
def session(name: str, at: Addresses, **options: Any) -> Iterator[LockSession]:
    """Open the connections of a contender for the length of the block.

    Args:
        options: further arguments of a `Redlock`; other contenders take no options.
    """
    with ExitStack() as stack:
        yield ALL[name](at, stack, **options)
