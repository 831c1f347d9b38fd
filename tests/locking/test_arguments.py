"""The arguments of locks: constructors refuse wrong ones, and the message says what is expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
from etcd3gw import Etcd3Client
from kazoo.client import KazooClient
from redis.cluster import ClusterPipeline

from lab.site.choice.lock_entries import ENTRIES
from locking import ProcessLock, RedisLock, Redlock, ReentrantLock, ThreadLock, force_release, held
from locking.etcd import EtcdLock
from locking.postgres import AdvisoryLock, InsertLock, RowLock, add_row, create_lock_tables
from locking.zookeeper import ZooKeeperLock

UNREACHED = redis.Redis(port=1)
"""A client that may not connect, because wrong arguments must be refused first."""

MAKERS: dict[str, Callable[..., Any]] = {
    "ThreadLock": ThreadLock,
    "ReentrantLock": lambda name: ReentrantLock(ThreadLock(name)),
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
WITH_OPTIONS = (*EXPIRING, "ZooKeeperLock", "AdvisoryLock", "RowLock")
ON_POSTGRES = ("AdvisoryLock", "RowLock", "InsertLock")
TIMES_OF_A_REDLOCK = ("drift_factor", "drift_seconds", "node_timeout", "retry_delay")
NAN, INFINITE = float("nan"), float("inf")
TOO_LONG: list[float] = [1e6 + 1, 2**32 / 1000 + 0.2, 1e12, 1e300, 10**400]
"""More seconds than any lock accepts. A socket would read the second value as 0.2 s; no `float` can hold the last."""

NOBODY = ContextVar("request_id", default=None).get
NO_SECONDS = ["10", None, Decimal(10), True, b"10", [10]]
NO_COUNTS = ["10", 1.5, 1.0, True]
WRONG_COUNTS = [-1, 2**63, 10**20]
"""Counts that are out of range for a server."""


def test_every_lock_is_tested() -> None:
    assert set(MAKERS) == {entry.lock.__name__ for entry in ENTRIES}


Names = Enum("Names", {"STOCK": "stock"}, type=str)
Counts = Enum("Counts", {"TWO": 2}, type=int)


@pytest.mark.parametrize(
    ("lock", "argument", "member"),
    [
        *[(lock, "name", Names.STOCK) for lock in MAKERS],
        ("RedisLock", "wait_for_replicas", Counts.TWO),
        ("Redlock", "retries", Counts.TWO),
    ],
)
def test_a_member_of_an_enum_is_its_value(lock: str, argument: str, member: Enum) -> None:
    """A member equals its value, but formats as `Names.STOCK` and hashes as `STOCK`: it would lock something else."""

    def attributes(value: object) -> dict[str, tuple[type, str]]:
        found = vars(MAKERS[lock](**{"name": "a", argument: value})).items()
        return {key: (type(it), str(it)) for key, it in found if isinstance(it, str | int | Path)}

    assert attributes(member) == attributes(member.value)


# Wrong arguments of the constructors: the argument, the locks that take it, wrong values, and the error.
OF_CONSTRUCTORS: list[tuple[str, Sequence[str], Sequence[Any], type[Exception], str]] = [
    ("name", [*MAKERS], [b"bytes", None, 42], TypeError, "the name of a lock must be a str"),
    ("name", [*MAKERS], [""], ValueError, "must not be empty"),
    ("name", [*EXPIRING, "AdvisoryLock", "RowLock", "ProcessLock"], ["\ud800"], ValueError, "surrogates"),
    ("name", ON_POSTGRES, ["zero \0 byte"], ValueError, "zero byte"),
    ("name", ["RedisLock"], ["{", "}", "a{b}c"], ValueError, "braces"),
    ("ttl", EXPIRING, NO_SECONDS, TypeError, "ttl must be a number of seconds"),
    ("ttl", EXPIRING, [0, -1, NAN, INFINITE], ValueError, "ttl"),
    ("ttl", EXPIRING, TOO_LONG, ValueError, "ttl must be 1000000 seconds"),
    ("ttl", ["EtcdLock"], [0.5, 1.5], ValueError, "a whole number of seconds"),
    ("renew", EXPIRING, [None, 0, "no", 3.0], TypeError, "renew must be True or False"),
    ("on_lost", WITH_OPTIONS, ["alarm", 42, False], TypeError, "on_lost must be a function"),
    ("clock", WITH_OPTIONS, [1.0, None], TypeError, "clock must be a function"),
    ("wait_for_replicas", ["RedisLock"], NO_COUNTS, TypeError, "wait_for_replicas must be an int"),
    ("wait_for_replicas", ["RedisLock"], WRONG_COUNTS, ValueError, "wait_for_replicas must be"),
    ("retries", ["Redlock"], NO_COUNTS, TypeError, "retries must be an int"),
    ("retries", ["Redlock"], WRONG_COUNTS, ValueError, "retries must be"),
    *[(time, ["Redlock"], NO_SECONDS, TypeError, f"{time} must be a number") for time in TIMES_OF_A_REDLOCK],
    *[(time, ["Redlock"], [*TOO_LONG, INFINITE, NAN, -0.1], ValueError, "must") for time in TIMES_OF_A_REDLOCK],
    ("drift_seconds", ["Redlock"], [10.0], ValueError, "ttl must be far longer than node_timeout and the drift"),
    ("node_timeout", ["Redlock"], [0.0, 10.0], ValueError, "ttl must be far longer than node_timeout and the drift"),
    ("retry_delay", ["Redlock"], [0.0], ValueError, "retry_delay must be more than 0"),
]


@pytest.mark.parametrize(
    ("lock", "argument", "wrong", "error", "message"),
    [
        pytest.param(lock, argument, *rest, id=f"{lock}: {rest[-1]}")
        for argument, locks, *rest in OF_CONSTRUCTORS
        for lock in locks
    ],
)
def test_a_constructor_refuses(
    lock: str, argument: str, wrong: Sequence[Any], error: type[Exception], message: str
) -> None:
    for value in wrong:
        with pytest.raises(error, match=message):
            MAKERS[lock](**{"name": "a", argument: value})


@pytest.mark.parametrize("lock", MAKERS)
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([{"timeout": each} for each in NO_SECONDS if each is not None], TypeError, "timeout must be a number"),
        ([{"timeout": each} for each in TOO_LONG], ValueError, "timeout must be 1000000 seconds"),
        ([{"timeout": each} for each in (-1.0, -0.001, NAN)], ValueError, "timeout must be 0 or more"),
        ([{"timeout": each, "blocking": False} for each in (0.0, 5.0)], ValueError, "timeout needs blocking"),
        # The 0.5 of `acquire(0.5)` is not the timeout. If it were accepted, the call would wait without limit.
        ([{"blocking": each} for each in (0.5, 1, "no", None)], TypeError, "blocking must be True or False"),
    ],
)
def test_acquire_refuses(lock: str, wrong: list[dict[str, Any]], error: type[Exception], message: str) -> None:
    made = MAKERS[lock]("a")
    for arguments in wrong:
        with pytest.raises(error, match=message):
            made.acquire(**arguments)
        if "blocking" not in arguments:
            with pytest.raises(error, match=message), made.hold(**arguments):
                pass


def test_a_timeout_may_be_without_limit() -> None:
    with ThreadLock("a").hold(timeout=INFINITE):
        pass


CLIENTS = [redis.asyncio.Redis(), valkey.Valkey(), None, "redis://localhost", UNREACHED.connection_pool]
PIPELINES = [UNREACHED.pipeline(), ClusterPipeline.__new__(ClusterPipeline)]
"""Subclasses of the client that only collect commands."""

WITH_A_CLIENT: list[Callable[[Any], object]] = [
    lambda client: RedisLock(client, "a"),
    lambda client: Redlock([client], "a"),
    held,
    lambda client: force_release(client, "a", by="a test"),
    lambda client: EtcdLock(client, "a"),
    lambda client: ZooKeeperLock(client, "a"),
]
WITH_CONNINFO: list[Callable[[Any], object]] = [
    lambda conninfo: AdvisoryLock(conninfo, "a"),
    lambda conninfo: RowLock(conninfo, "a"),
    lambda conninfo: InsertLock(conninfo, "a"),
    create_lock_tables,
    lambda conninfo: add_row(conninfo, "a"),
]
NO_CONNINFO = ["nonsense", "port=1\0 host=elsewhere", "host=\ud800"]
"""Text that is no connection string. libpq would read it up to a zero byte and connect elsewhere."""


@pytest.mark.parametrize(
    ("use", "wrong", "error", "message"),
    [
        *[(use, CLIENTS, TypeError, "the client of this lock must be a") for use in WITH_A_CLIENT],
        *[(use, PIPELINES, TypeError, r"not a redis\..*Pipeline") for use in WITH_A_CLIENT],
        *[(use, [None, b"", 5432], TypeError, "conninfo must be a libpq connection string") for use in WITH_CONNINFO],
        *[(use, NO_CONNINFO, ValueError, "conninfo is not a libpq connection string") for use in WITH_CONNINFO],
        (lambda name: force_release(UNREACHED, name, by="me"), [None, b"a"], TypeError, "the name of a lock must be a"),
        (lambda name: force_release(UNREACHED, name, by="me"), [""], ValueError, "must not be empty"),
        (lambda name: force_release(UNREACHED, name, by="me"), ["\ud800", "a}b"], ValueError, "surrogates|braces"),
        (lambda fence: force_release(UNREACHED, "a", by="me", fence=fence), NO_COUNTS, TypeError, "fence must be"),
        (lambda fence: force_release(UNREACHED, "a", by="me", fence=fence), WRONG_COUNTS, ValueError, "fence must be"),
        (lambda by: force_release(UNREACHED, "a", by=by), [None, b"me", 42], TypeError, "by must be a str"),
        (lambda count: held(UNREACHED, limit=count), [*NO_COUNTS, None], TypeError, "limit must be"),
        (lambda count: held(UNREACHED, limit=count), WRONG_COUNTS, ValueError, "limit must be"),
        (lambda count: held(UNREACHED, scan=count), [*NO_COUNTS, None], TypeError, "scan must be"),
        (lambda count: held(UNREACHED, scan=count), WRONG_COUNTS, ValueError, "scan must be"),
        (lambda name: add_row("", name), ["", "zero \0 byte", "\ud800"], ValueError, "empty|zero byte|surrogates"),
        (ReentrantLock, ["a"], TypeError, "wraps a lock"),
        (lambda owner: ReentrantLock(ThreadLock("a"), owner=owner), ["me"], TypeError, "owner must be a function"),
        (lambda owner: ReentrantLock(ThreadLock("a"), owner=owner).acquire(), [list], TypeError, "hashable value"),
        # Two requests for which a context variable is not set must not hold the lock together.
        (lambda owner: ReentrantLock(ThreadLock("a"), owner=owner).acquire(), [NOBODY], TypeError, "who the caller is"),
        (lambda clients: Redlock(clients, "a"), [UNREACHED], TypeError, "sequence of clients"),
        (lambda clients: Redlock(clients, "a"), [[], [UNREACHED] * 2], ValueError, "votes twice"),
        (lambda folder: ProcessLock(folder, "a"), [None, b"/tmp", 3], TypeError, "folder must be a path"),
        (lambda folder: ProcessLock(folder, "a"), ["a\0b", "\ud800"], ValueError, "folder"),
        (lambda name: ProcessLock(Path(), name), ["x" * 251, "ü" * 42], ValueError, "name"),
    ],
)
def test_what_takes_other_arguments_refuses(
    use: Callable[[Any], object], wrong: Sequence[Any], error: type[Exception], message: str
) -> None:
    for value in wrong:
        with pytest.raises(error, match=message):
            use(value)
