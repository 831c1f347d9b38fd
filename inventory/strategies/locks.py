"""The locks that a sale may put around the taking of stock: those whose server the shop knows.

The clients of etcd and ZooKeeper are imported where they are used: they load slowly, and few shops have these servers.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterator, Sequence
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
from locking import ProcessLock, RedisLock, Redlock
from locking.postgres import AdvisoryLock, InsertLock, RowLock

if TYPE_CHECKING:
    from etcd3gw import Etcd3Client
    from kazoo.client import KazooClient

    from inventory.requests import Saved
    from locking.etcd import EtcdLock
    from locking.zookeeper import ZooKeeperLock

_starting = threading.Lock()


def stock_lock(sku: str, segment: int | None = None) -> RedisLock:
    """The lock of a sku, or of a segment of it, in the shop's Redis."""
    name = name_of(sku) if segment is None else f"{name_of(sku)}:{segment}"
    return RedisLock(get_redis_connection("default"), name, ttl=settings.STOCK_LOCK_TTL)


def redlock(sku: str) -> Redlock:
    """On a majority of REDLOCK_URLS. It gives no fence."""
    return Redlock(_redlock_clients(), name_of(sku), ttl=settings.STOCK_LOCK_TTL)


def etcd_lock(sku: str) -> EtcdLock:
    """On the etcd at ETCD_URL, whose times are whole seconds."""
    from locking.etcd import EtcdLock

    return EtcdLock(_etcd_client(), name_of(sku), ttl=math.ceil(settings.STOCK_LOCK_TTL))


def zookeeper_lock(sku: str) -> ZooKeeperLock:
    """On the ZooKeeper at ZOOKEEPER_HOSTS. The first to ask waits until its client has a connection."""
    from locking.zookeeper import ZooKeeperLock

    client, connected = _zookeeper_client()
    connected.wait(settings.STOCK_LOCK_WAIT)
    return ZooKeeperLock(client, name_of(sku))


def file_lock(sku: str) -> ProcessLock:
    """A file in LOCK_FOLDER, so it keeps apart the processes of one machine. It gives no fence."""
    folder = Path(settings.LOCK_FOLDER)
    with suppress(OSError):  # the lock says what is wrong with it
        folder.mkdir(mode=0o700, exist_ok=True)
    # A sku can be longer than the name of a file.
    return ProcessLock(folder, f"stock-{hashlib.sha256(sku.encode()).hexdigest()}")


def session_lock(sku: str) -> AdvisoryLock:
    """An advisory lock of Postgres on a connection of its own. It gives no fence."""
    return AdvisoryLock(conninfo(), name_of(sku))


def insert_lock(sku: str) -> InsertLock:
    """A row in Postgres that only one can insert."""
    return InsertLock(conninfo(), name_of(sku), ttl=settings.STOCK_LOCK_TTL)


def row_lock(sku: str) -> RowLock:
    """A row of a table of locks in Postgres, on a connection of its own."""
    return RowLock(conninfo(), name_of(sku))


class LockTable(Locked):
    """`lock-table`: the lock of a sku is a row, which has to be there before it can be locked."""

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO lock_row (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
                [sorted(map(name_of, skus))],
            )


def lock_strategies() -> Iterator[Locked]:
    """The lock-wrapped strategy over each lock whose server is known."""
    wait = settings.STOCK_LOCK_WAIT
    yield Locked("insert-lock", insert_lock, wait=wait)
    yield LockTable("lock-table", row_lock, wait=wait)
    yield Locked("redis-lock", stock_lock, wait=wait)
    yield Locked("session-lock", session_lock, wait=wait)
    if settings.ETCD_URL:
        yield Locked("etcd-lock", etcd_lock, wait=wait)
    if settings.LOCK_FOLDER:
        yield Locked("file-lock", file_lock, wait=wait)
    if settings.REDLOCK_URLS:
        yield Locked("redlock", redlock, wait=wait)
    if settings.ZOOKEEPER_HOSTS:
        yield Locked("zookeeper-lock", zookeeper_lock, wait=wait)


def name_of(sku: str) -> str:
    """What the lock of a sku is called. A lock's name has no braces; a sku may."""
    return f"stock:{quote(sku, safe='/:')}"


def conninfo() -> str:
    """Where the shop's Postgres is, for connections that a lock opens for itself."""
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
    """One for each process, since its threads do not survive a fork. It connects again by itself, for ever."""
    from kazoo.client import KazooClient

    client = KazooClient(
        settings.ZOOKEEPER_HOSTS, timeout=settings.STOCK_LOCK_TTL, connection_retry={"max_tries": -1, "max_delay": 1}
    )
    return client, client.start_async()
