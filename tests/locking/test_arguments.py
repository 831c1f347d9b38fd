"""The arguments of locks: constructors refuse wrong ones, and the message says what is expected."""

from __future__ import annotations

from collections.abc import Callable
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
WITHOUT_OPTIONS = ("ThreadLock", "ReentrantLock", "ProcessLock")
EXPIRING = ("RedisLock", "Redlock", "EtcdLock", "InsertLock")
TOO_LONG: list[float] = [1e6 + 1, 2**32 / 1000 + 0.2, 1e12, 1e300, 10**400]
"""More seconds than any lock accepts. A socket would read the second value as 0.2 s; no `float` can hold the last."""

TOO_MANY = [2**63, 10**20]
"""Counts that are too large for a server."""

NO_SECONDS = ["10", None, Decimal(10), True, b"10", [10]]


def test_every_lock_is_tested() -> None:
    assert set(MAKERS) == {entry.lock.__name__ for entry in ENTRIES}


class Names(str, Enum):  # noqa: UP042 - members of a StrEnum format as their text
    STOCK = "stock"


@pytest.mark.parametrize("lock", MAKERS)
def test_a_name_in_an_enum_is_its_text(lock: str) -> None:
    """It equals its text, but formats as `Names.STOCK` and has the hash of `STOCK`: it would lock something else."""

    def texts(name: str) -> dict[str, tuple[type, str]]:
        return {key: (type(it), str(it)) for key, it in vars(MAKERS[lock](name)).items() if isinstance(it, str | Path)}

    assert texts(Names.STOCK) == texts("stock")


class Counts(int, Enum):
    TWO = 2


@pytest.mark.parametrize(("lock", "argument"), [("RedisLock", "wait_for_replicas"), ("Redlock", "retries")])
def test_a_count_in_an_enum_is_its_number(lock: str, argument: str) -> None:
    """It equals its number, but formats as `Counts.TWO`, which a server would refuse."""

    def numbers(count: int) -> dict[str, tuple[type, str]]:
        found = vars(MAKERS[lock]("a", **{argument: count})).items()
        return {key: (type(it), str(it)) for key, it in found if isinstance(it, int)}

    assert numbers(Counts.TWO) == numbers(2)


@pytest.mark.parametrize("lock", MAKERS)
def test_a_name_is_text(lock: str) -> None:
    for name in (b"bytes", None, 42):
        with pytest.raises(TypeError, match="the name of a lock must be a str"):
            MAKERS[lock](name)


@pytest.mark.parametrize("lock", MAKERS)
def test_a_name_is_not_empty(lock: str) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        MAKERS[lock]("")


@pytest.mark.parametrize(
    "lock", [name for name in MAKERS if name not in ("ThreadLock", "ReentrantLock", "ZooKeeperLock")]
)
def test_a_name_can_be_encoded(lock: str) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        MAKERS[lock]("\ud800")


def test_a_lock_that_is_released_by_force_has_a_name() -> None:
    with pytest.raises(TypeError, match="the name of a lock must be a str"):
        force_release(UNREACHED, None, by="a test")  # type: ignore[arg-type]
    for name, wrong in (("", "empty"), ("\ud800", "surrogates"), ("a}b", "braces")):
        with pytest.raises(ValueError, match=wrong):
            force_release(UNREACHED, name, by="a test")


@pytest.mark.parametrize(
    ("fence", "error"), [("1", TypeError), (1.0, TypeError), (True, TypeError), (-1, ValueError), (2**63, ValueError)]
)
def test_a_fence_is_a_count(fence: Any, error: type[Exception]) -> None:
    """A fence must be a count: a value of another type would equal no fence."""
    with pytest.raises(error, match="fence must be"):
        force_release(UNREACHED, "a", by="a test", fence=fence)


@pytest.mark.parametrize("by", [None, b"me", 42])
def test_who_releases_by_force_is_text(by: Any) -> None:
    with pytest.raises(TypeError, match="by must be a str"):
        force_release(UNREACHED, "a", by=by)


@pytest.mark.parametrize("lock", EXPIRING)
def test_a_ttl_is_a_number(lock: str) -> None:
    for ttl in NO_SECONDS:
        with pytest.raises(TypeError, match="ttl must be a number of seconds"):
            MAKERS[lock]("a", ttl=ttl)


@pytest.mark.parametrize("lock", EXPIRING)
def test_a_ttl_is_finite_and_positive(lock: str) -> None:
    for ttl in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="ttl"):
            MAKERS[lock]("a", ttl=ttl)


@pytest.mark.parametrize("lock", EXPIRING)
def test_a_ttl_is_limited(lock: str) -> None:
    for ttl in TOO_LONG:
        with pytest.raises(ValueError, match="ttl must be 1000000 seconds"):
            MAKERS[lock]("a", ttl=ttl)


@pytest.mark.parametrize("lock", EXPIRING)
def test_the_longest_ttl_is_taken(lock: str) -> None:
    assert MAKERS[lock]("a", ttl=1e6).ttl == 1e6


@pytest.mark.parametrize("lock", MAKERS)
def test_a_timeout_is_limited(lock: str) -> None:
    for timeout in TOO_LONG:
        with pytest.raises(ValueError, match="timeout must be 1000000 seconds"):
            MAKERS[lock]("a").acquire(timeout=timeout)


def test_a_timeout_may_be_without_limit() -> None:
    with ThreadLock("a").hold(timeout=float("inf")), pytest.raises(ValueError, match="ttl must be finite"):
        RedisLock(UNREACHED, "a", ttl=float("inf"))


@pytest.mark.parametrize("lock", MAKERS)
def test_a_timeout_is_a_number(lock: str) -> None:
    for timeout in (one for one in NO_SECONDS if one is not None):
        with pytest.raises(TypeError, match="timeout must be a number of seconds"):
            MAKERS[lock]("a").acquire(timeout=timeout)


@pytest.mark.parametrize("lock", MAKERS)
def test_blocking_is_true_or_false(lock: str) -> None:
    """`blocking` must be a bool, because a timeout in its place, as in `acquire(0.5)`, would wait without limit."""
    wrong: list[Any] = [0.5, 1, "no", None]
    for blocking in wrong:
        with pytest.raises(TypeError, match="blocking must be True or False"):
            MAKERS[lock]("a").acquire(blocking)


@pytest.mark.parametrize("lock", EXPIRING)
def test_renew_is_true_or_false(lock: str) -> None:
    for renew in (None, 0, "no", 3.0):
        with pytest.raises(TypeError, match="renew must be True or False"):
            MAKERS[lock]("a", renew=renew)


@pytest.mark.parametrize("lock", [name for name in MAKERS if name not in WITHOUT_OPTIONS])
def test_functions_can_be_called(lock: str) -> None:
    wrong: list[tuple[str, Any]] = [
        ("on_lost", "alarm"),
        ("on_lost", 42),
        ("on_lost", False),
        ("clock", 1.0),
        ("clock", None),
    ]
    for argument, function in wrong:
        with pytest.raises(TypeError, match=f"{argument} must be a function"):
            MAKERS[lock]("a", **{argument: function})


def test_a_reentrant_lock_wraps_a_lock() -> None:
    with pytest.raises(TypeError, match="wraps a lock"):
        ReentrantLock("a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="owner must be a function"):
        ReentrantLock(ThreadLock("a"), owner="me")  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["limit", "scan"])
@pytest.mark.parametrize(
    ("count", "error"), [("10", TypeError), (1.5, TypeError), (None, TypeError), (-1, ValueError), (10**20, ValueError)]
)
def test_a_listing_has_counts(argument: str, count: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{argument} must be"):
        held(UNREACHED, **{argument: count})


@pytest.mark.parametrize("ttl", ["10", Decimal(10), float("inf")])
def test_an_extension_is_a_finite_number(client: redis.Redis, ttl: Any) -> None:
    with RedisLock(client, "extended").hold() as lease, pytest.raises((TypeError, ValueError), match="ttl must be"):
        lease.extend(ttl)


@pytest.mark.parametrize("argument", ["drift_factor", "drift_seconds", "node_timeout", "retry_delay"])
def test_times_of_a_redlock_are_numbers(argument: str) -> None:
    for seconds in NO_SECONDS:
        with pytest.raises(TypeError, match=f"{argument} must be a number"):
            Redlock([UNREACHED], "a", **{argument: seconds})


@pytest.mark.parametrize("argument", ["drift_factor", "drift_seconds", "node_timeout", "retry_delay"])
def test_times_of_a_redlock_are_limited(argument: str) -> None:
    for seconds in (*TOO_LONG, float("inf"), float("nan"), -1.0):
        with pytest.raises(ValueError, match="must"):
            Redlock([UNREACHED], "a", **{argument: seconds})


@pytest.mark.parametrize("count", TOO_MANY)
def test_counts_are_limited(count: int) -> None:
    with pytest.raises(ValueError, match="retries must be"):
        Redlock([UNREACHED], "a", retries=count)
    with pytest.raises(ValueError, match="wait_for_replicas must be"):
        RedisLock(UNREACHED, "a", wait_for_replicas=count)


@pytest.mark.parametrize("count", ["1", 1.0, True])
def test_counts_are_integers(count: Any) -> None:
    with pytest.raises(TypeError, match="retries must be an int"):
        Redlock([UNREACHED], "a", retries=count)
    with pytest.raises(TypeError, match="wait_for_replicas must be an int"):
        RedisLock(UNREACHED, "a", wait_for_replicas=count)


CLIENTS = [redis.asyncio.Redis(), valkey.Valkey(), None, "redis://localhost", UNREACHED.connection_pool]


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
def test_a_client_is_one_that_the_lock_can_use(use: Callable[[Any], object]) -> None:
    for client in CLIENTS:
        with pytest.raises(TypeError, match="the client of this lock must be a"):
            use(client)


@pytest.mark.parametrize(
    "pipeline",
    [
        pytest.param(UNREACHED.pipeline(), id="Pipeline"),
        pytest.param(ClusterPipeline.__new__(ClusterPipeline), id="ClusterPipeline"),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda client: RedisLock(client, "a"), id="RedisLock"),
        pytest.param(lambda client: Redlock([client], "a"), id="Redlock"),
        pytest.param(held, id="held"),
        pytest.param(lambda client: force_release(client, "a", by="a test"), id="force_release"),
    ],
)
def test_a_pipeline_is_no_client(use: Callable[[Any], object], pipeline: Any) -> None:
    """A pipeline is refused as a client. It is a subclass of the client, but only collects commands."""
    with pytest.raises(TypeError, match=r"not a redis\..*Pipeline"):
        use(pipeline)


def test_a_redlock_has_several_clients() -> None:
    with pytest.raises(TypeError, match="sequence of clients"):
        Redlock(UNREACHED, "a")  # type: ignore[arg-type]


SERVERS = [
    pytest.param(lambda conninfo: AdvisoryLock(conninfo, "a"), id="AdvisoryLock"),
    pytest.param(lambda conninfo: RowLock(conninfo, "a"), id="RowLock"),
    pytest.param(lambda conninfo: InsertLock(conninfo, "a"), id="InsertLock"),
    pytest.param(create_lock_tables, id="create_lock_tables"),
    pytest.param(lambda conninfo: add_row(conninfo, "a"), id="add_row"),
]


@pytest.mark.parametrize("use", SERVERS)
def test_a_server_is_named_by_text(use: Callable[[Any], object]) -> None:
    for conninfo in (None, b"", 5432):
        with pytest.raises(TypeError, match="conninfo must be a libpq connection string"):
            use(conninfo)


@pytest.mark.parametrize("use", SERVERS)
def test_a_server_is_named_by_a_connection_string(use: Callable[[Any], object]) -> None:
    """Text that is no connection string is refused, because libpq reads it up to a zero byte and connects elsewhere."""
    for conninfo in ["nonsense", "port=1\0 host=elsewhere", "host=\ud800"]:
        with pytest.raises(ValueError, match="conninfo is not a libpq connection string"):
            use(conninfo)


@pytest.mark.parametrize("folder", [None, b"/tmp", 3, object()])
def test_a_folder_is_a_path(folder: Any) -> None:
    with pytest.raises(TypeError, match="folder must be a path"):
        ProcessLock(folder, "a")


@pytest.mark.parametrize("folder", ["a\0b", "\ud800"])
def test_a_folder_can_exist(folder: str) -> None:
    with pytest.raises(ValueError, match="folder"):
        ProcessLock(folder, "a")


def test_the_owner_of_a_reentrant_lock_can_be_a_key() -> None:
    with pytest.raises(TypeError, match="owner must return a hashable value"):
        ReentrantLock(ThreadLock("a"), owner=list).acquire()  # type: ignore[arg-type]
