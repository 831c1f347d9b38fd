"""Tests of the arguments of locks: the constructor refuses a wrong one, with a message that says what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
from etcd3gw import Etcd3Client
from kazoo.client import KazooClient

from locking import ProcessLock, RedisLock, Redlock, ReentrantLock, ThreadLock, force_release, held
from locking.etcd import EtcdLock
from locking.postgres import AdvisoryLock, InsertLock, RowLock
from locking.zookeeper import ZooKeeperLock

UNREACHED = redis.Redis(port=1)
"""A client that no test lets connect: whatever is wrong has to be refused before."""

MAKERS: dict[str, Callable[..., Any]] = {
    "ThreadLock": ThreadLock,
    "ProcessLock": lambda name: ProcessLock(Path(), name),
    "RedisLock": lambda name, **options: RedisLock(UNREACHED, name, **options),
    "Redlock": lambda name, **options: Redlock([UNREACHED], name, **options),
    "ZooKeeperLock": lambda name, **options: ZooKeeperLock(KazooClient(), name, **options),
    "EtcdLock": lambda name, **options: EtcdLock(Etcd3Client(), name, **options),
    "AdvisoryLock": lambda name, **options: AdvisoryLock("", name, **options),
    "RowLock": lambda name, **options: RowLock("", name, **options),
    "InsertLock": lambda name, **options: InsertLock("", name, **options),
}
EXPIRING = ("RedisLock", "Redlock", "EtcdLock", "InsertLock")
NO_SECONDS = ["10", None, Decimal(10), True, b"10", [10]]


@pytest.mark.parametrize("lock", MAKERS)
@pytest.mark.parametrize("name", [b"bytes", None, 42])
def test_a_name_is_text(lock: str, name: Any) -> None:
    with pytest.raises(TypeError, match="the name of a lock must be a str"):
        MAKERS[lock](name)


@pytest.mark.parametrize("lock", MAKERS)
def test_a_name_is_not_empty(lock: str) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        MAKERS[lock]("")


@pytest.mark.parametrize("lock", ["RedisLock", "Redlock"])
def test_a_name_can_be_encoded(lock: str) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        MAKERS[lock]("\ud800")


@pytest.mark.parametrize("lock", EXPIRING)
@pytest.mark.parametrize("ttl", NO_SECONDS)
def test_a_ttl_is_a_number(lock: str, ttl: Any) -> None:
    with pytest.raises(TypeError, match="ttl must be a number of seconds"):
        MAKERS[lock]("a", ttl=ttl)


@pytest.mark.parametrize("lock", EXPIRING)
@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_ttl_is_finite_and_positive(lock: str, ttl: float) -> None:
    with pytest.raises(ValueError, match="ttl"):
        MAKERS[lock]("a", ttl=ttl)


@pytest.mark.parametrize("lock", MAKERS)
@pytest.mark.parametrize("timeout", [one for one in NO_SECONDS if one is not None])
def test_a_timeout_is_a_number(lock: str, timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        MAKERS[lock]("a").acquire(timeout=timeout)


@pytest.mark.parametrize("lock", MAKERS)
@pytest.mark.parametrize("blocking", [0.5, 1, "no", None])
def test_blocking_is_true_or_false(lock: str, blocking: Any) -> None:
    """A timeout that is passed in its place, as in `acquire(0.5)`, would wait without limit."""
    with pytest.raises(TypeError, match="blocking must be True or False"):
        MAKERS[lock]("a").acquire(blocking)


@pytest.mark.parametrize("lock", EXPIRING)
@pytest.mark.parametrize("renew", [None, 0, "no", 3.0])
def test_renew_is_true_or_false(lock: str, renew: Any) -> None:
    with pytest.raises(TypeError, match="renew must be True or False"):
        MAKERS[lock]("a", renew=renew)


@pytest.mark.parametrize("lock", [name for name in MAKERS if name not in ("ThreadLock", "ProcessLock")])
@pytest.mark.parametrize(
    ("argument", "function"),
    [("on_lost", "alarm"), ("on_lost", 42), ("on_lost", False), ("clock", 1.0), ("clock", None)],
)
def test_functions_can_be_called(lock: str, argument: str, function: Any) -> None:
    with pytest.raises(TypeError, match=f"{argument} must be a function"):
        MAKERS[lock]("a", **{argument: function})


def test_a_reentrant_lock_wraps_a_lock() -> None:
    with pytest.raises(TypeError, match="wraps a lock"):
        ReentrantLock("a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="owner must be a function"):
        ReentrantLock(ThreadLock("a"), owner="me")  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["limit", "scan"])
@pytest.mark.parametrize(("count", "error"), [("10", TypeError), (1.5, TypeError), (None, TypeError), (-1, ValueError)])
def test_a_listing_has_counts(argument: str, count: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{argument} must be"):
        held(UNREACHED, **{argument: count})


@pytest.mark.parametrize("ttl", ["10", Decimal(10), float("inf")])
def test_an_extension_is_a_finite_number(client: redis.Redis, ttl: Any) -> None:
    with RedisLock(client, "extended").hold() as lease, pytest.raises((TypeError, ValueError), match="ttl must be"):
        lease.extend(ttl)


@pytest.mark.parametrize("argument", ["drift_factor", "drift_seconds", "node_timeout", "retry_delay"])
@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_times_of_a_redlock_are_numbers(argument: str, seconds: Any) -> None:
    with pytest.raises(TypeError, match=f"{argument} must be a number"):
        Redlock([UNREACHED], "a", **{argument: seconds})


@pytest.mark.parametrize("count", ["1", 1.0, True])
def test_counts_are_integers(count: Any) -> None:
    with pytest.raises(TypeError, match="retries must be an int"):
        Redlock([UNREACHED], "a", retries=count)
    with pytest.raises(TypeError, match="wait_for_replicas must be an int"):
        RedisLock(UNREACHED, "a", wait_for_replicas=count)


CLIENTS = {
    "asyncio": redis.asyncio.Redis(),
    "valkey": valkey.Valkey(),
    "none": None,
    "url": "redis://localhost",
    "pool": UNREACHED.connection_pool,
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda client: RedisLock(client, "a"), id="RedisLock"),
        pytest.param(lambda client: Redlock([client], "a"), id="Redlock"),
        pytest.param(lambda client: EtcdLock(client, "a"), id="EtcdLock"),
        pytest.param(lambda client: ZooKeeperLock(client, "a"), id="ZooKeeperLock"),
        pytest.param(held, id="held"),
        pytest.param(lambda client: force_release(client, "a", by="a test"), id="force_release"),
    ],
)
def test_a_client_is_one_that_the_lock_can_use(use: Callable[[Any], object], client: Any) -> None:
    with pytest.raises(TypeError, match="the client of this lock must be a"):
        use(client)


def test_a_redlock_has_several_clients() -> None:
    with pytest.raises(TypeError, match="sequence of clients"):
        Redlock(UNREACHED, "a")  # type: ignore[arg-type]


@pytest.mark.parametrize("lock", [AdvisoryLock, RowLock, InsertLock])
@pytest.mark.parametrize("conninfo", [None, b"", 5432])
def test_a_server_is_named_by_text(lock: Any, conninfo: Any) -> None:
    with pytest.raises(TypeError, match="conninfo must be a libpq connection string"):
        lock(conninfo, "a")
