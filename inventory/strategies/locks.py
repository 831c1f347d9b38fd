"""Functions that make the lock of a sku for each lock strategy, from the settings.

The clients of etcd and ZooKeeper are imported inside the functions: they load slowly, and few shops have these servers.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.db import connection
from django_redis import get_redis_connection
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from redis import Redis

from inventory.strategies.locked import Locked
from locking import Lock, ProcessLock, RedisLock, Redlock
from locking.postgres import InsertLock, RowLock
from locking.postgres.advisory import AdvisoryLock

if TYPE_CHECKING:
    from etcd3gw import Etcd3Client
    from kazoo.client import KazooClient

    from inventory.requests import Saved
    from locking.etcd import EtcdLock
    from locking.zookeeper import ZooKeeperLock

_starting = threading.Lock()


def stock_lock(sku: str, segment: int | None = None) -> RedisLock:
    """Return the lock of a sku, or of one of its segments, in the shop's Redis."""
    name = lock_name(sku) if segment is None else f"{lock_name(sku)}:{segment}"
    return RedisLock(get_redis_connection("default"), name, ttl=settings.STOCK_LOCK_TTL)


def redlock(sku: str) -> Redlock:
    """Return a lock on a majority of the Redis servers in REDLOCK_URLS. It gives no fencing token."""
    return Redlock(_redlock_clients(), lock_name(sku), ttl=settings.STOCK_LOCK_TTL)


def etcd_lock(sku: str) -> EtcdLock:
    """Return a lock in the etcd at ETCD_URL. etcd accepts a TTL in whole seconds only."""
    from locking.etcd import EtcdLock

    return EtcdLock(_etcd_client(), lock_name(sku), ttl=math.ceil(settings.STOCK_LOCK_TTL))


def zookeeper_lock(sku: str) -> ZooKeeperLock:
    """Return a lock in the ZooKeeper at ZOOKEEPER_HOSTS. Wait for the connection, at most STOCK_LOCK_WAIT seconds."""
    from locking.zookeeper import ZooKeeperLock

    client, connected = _zookeeper_client()
    connected.wait(settings.STOCK_LOCK_WAIT)
    return ZooKeeperLock(client, lock_name(sku))


def file_lock(sku: str) -> ProcessLock:
    """Return a lock on a file in LOCK_FOLDER, for the processes of one machine. It gives no fencing token."""
    folder = Path(settings.LOCK_FOLDER)
    with suppress(OSError):  # If the folder cannot be used, the lock itself reports why.
        folder.mkdir(mode=0o700, exist_ok=True)
    # Hash the sku, because it can be longer than a file name may be.
    return ProcessLock(folder, f"stock-{hashlib.sha256(sku.encode()).hexdigest()}")


def session_lock(sku: str) -> AdvisoryLock:
    """Return an advisory lock of Postgres on a connection of its own. It gives no fencing token."""
    return AdvisoryLock(conninfo(), lock_name(sku))


def insert_lock(sku: str) -> InsertLock:
    """Return a lock in Postgres that a holder takes by inserting a row, and releases by deleting it."""
    return InsertLock(conninfo(), lock_name(sku), ttl=settings.STOCK_LOCK_TTL)


def row_lock(sku: str) -> RowLock:
    """Return a lock on an existing row of the lock table in Postgres, on a connection of its own."""
    return RowLock(conninfo(), lock_name(sku))


class LockTable(Locked):
    """`lock-table`: lock a row for each sku. `preheat` inserts the rows, because only existing rows can be locked."""

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO lock_row (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
                [sorted(map(lock_name, skus))],
            )


LOCKS: Mapping[str, Callable[[str], Lock]] = {
    "etcd-lock": etcd_lock,
    "file-lock": file_lock,
    "insert-lock": insert_lock,
    "lock-table": row_lock,
    "redis-lock": stock_lock,
    "redlock": redlock,
    "session-lock": session_lock,
    "zookeeper-lock": zookeeper_lock,
}
"""Functions that return the lock of a sku, by the name of the strategy."""


def lock_strategy(name: str) -> Locked:
    """Return the lock strategy of this name, such as `redis-lock`."""
    kind = LockTable if name == "lock-table" else Locked
    return kind(name, LOCKS[name], wait=settings.STOCK_LOCK_WAIT)


def lock_name(sku: str) -> str:
    """Return the name of the lock of a sku. Braces are percent-encoded, because a `RedisLock` allows none."""
    return f"stock:{quote(sku, safe='/:')}"


def conninfo() -> str:
    """Return the connection string of the shop's Postgres, for locks that open connections of their own."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    wanted = connection.get_connection_params()
    return make_conninfo("", **{name: value for name, value in wanted.items() if name in known})


@cache
def _redlock_clients() -> Sequence[Redis]:
    return tuple(Redis.from_url(url) for url in settings.REDLOCK_URLS)


@cache
def _etcd_client() -> Etcd3Client:
    from etcd3gw import Etcd3Client

    url = urlsplit(settings.ETCD_URL)
    return Etcd3Client(url.hostname, url.port or 2379, protocol=url.scheme)


def _zookeeper_client() -> tuple[KazooClient, threading.Event]:
    with _starting:
        return _zookeeper_client_of(os.getpid())


@cache
def _zookeeper_client_of(process: int) -> tuple[KazooClient, threading.Event]:
    """Return the ZooKeeper client of a process; a forked child needs its own. The client reconnects without limit."""
    from kazoo.client import KazooClient

    client = KazooClient(
        settings.ZOOKEEPER_HOSTS, timeout=settings.STOCK_LOCK_TTL, connection_retry={"max_tries": -1, "max_delay": 1}
    )
    return client, client.start_async()
