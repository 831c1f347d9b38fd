"""The lock-wrapped strategy over any lock: fences of several kinds, locks without one, locks that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from django.test import override_settings
from django_redis import get_redis_connection
from redis import Redis

from inventory import stock
from inventory.errors import StockBusy, StockElsewhere, StockNotLoaded, StockUnavailable
from inventory.models import StockItem
from inventory.strategies import locked, locks, registry
from inventory.strategies.base import Strategy
from inventory.strategies.locked import CLAIM, Locked
from inventory.strategies.locks import conninfo, file_lock, lock_strategies
from inventory.strategies.registry import NAMES
from locking import FairRedisLock, Lease, Lock, ProcessLock, RedisLock, ReentrantLock, ThreadLock
from tests.factories import elsewhere, meeting_before_the_write, new_request, nobody, preheated, tally
from tests.inventory.conftest import Ledger
from tests.inventory.test_row_lock import subtract_unguarded

pytestmark = pytest.mark.django_db(transaction=True)

FENCED = ["insert-lock", "lock-table", "redis-lock"]

# Fences of several kinds


def claimed() -> tuple[str, int]:
    return StockItem.objects.values_list("fenced_by", "fence").get()


@pytest.mark.parametrize("other", ["insert-lock", "lock-table"])
def test_a_sku_that_moves_from_one_kind_of_lock_to_another_and_back_sells_on(ledger: Ledger, other: str) -> None:
    """Redis counts microseconds, the table of grants counts from 1."""
    preheated(other, {"a": 4})
    seen = []
    for name in ("redis-lock", other, other, "redis-lock"):
        registry.get(name).place(new_request(("a", 1)), ledger.save)
        seen.append(claimed())
    assert [name for name, _ in seen] == ["redis-lock", other, other, "redis-lock"]
    assert seen[1][1] < seen[2][1]
    assert seen[0][1] < seen[3][1]
    ledger.assert_law(a=(0, 4))


def test_where_fences_of_every_kind_are_compared_the_second_kind_never_sells(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(locked, "CLAIM", CLAIM.replace(" OR fenced_by <> %(kind)s", ""))
    preheated("redis-lock", {"a": 2}).place(new_request(("a", 1)), ledger.save)
    with pytest.raises(StockElsewhere, match="a is split up"):
        registry.get("insert-lock").place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 1))


@pytest.mark.parametrize("name", FENCED)
def test_within_a_kind_the_lower_fence_is_overtaken(ledger: Ledger, name: str) -> None:
    strategy = preheated(name, {"a": 1})
    StockItem.objects.update(fence=2**62, fenced_by=name)
    with pytest.raises(StockBusy, match="overtaken"):
        strategy.place(new_request(("a", 1)), ledger.save)
    StockItem.objects.update(fence=2**62, fenced_by="another")
    strategy.place(new_request(("a", 1)), ledger.save)
    assert claimed()[0] == name
    ledger.assert_law(a=(0, 1))


# Locks without a fence


class ExcludesNobody(ProcessLock):
    """What is left of a lock whose holders have all been overtaken without knowing it."""

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        lease = file_lock(f"nobody else's {uuid4()}").acquire(blocking=False)
        assert lease is not None
        lease.release()
        yield lease


@pytest.mark.parametrize(
    ("guarded", "refused"), [(True, "SoldOut"), (False, "IntegrityError")], ids=["guarded", "unguarded"]
)
def test_when_a_lock_without_a_fence_fails_the_guard_sells_no_unit_twice(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, guarded: bool, refused: str
) -> None:
    if not guarded:
        monkeypatch.setattr(stock, "take", subtract_unguarded)
    stock.deliver("last", 1)
    strategy = Locked("excludes-nobody", lambda sku: ExcludesNobody(tmp_path, sku), wait=1)
    buyers = [partial(strategy.place, new_request(("last", 1)), ledger.save) for _ in range(4)]
    assert tally(meeting_before_the_write(*buyers)) == {"COMMITTED": 1, refused: 3}
    ledger.assert_law(last=(0, 1))


@pytest.mark.parametrize("name", ["file-lock", "session-lock"])
def test_a_lock_without_a_fence_claims_nothing(ledger: Ledger, name: str) -> None:
    preheated("redis-lock", {"a": 2}).place(new_request(("a", 1)), ledger.save)
    before = claimed()
    registry.get(name).place(new_request(("a", 1)), ledger.save)
    assert claimed() == before
    ledger.assert_law(a=(0, 2))


# Which locks there are


def redis_client() -> Redis:
    return get_redis_connection("default")


NOT_ON_SALE: dict[str, Callable[[str], Lock]] = {
    "fair": lambda sku: FairRedisLock(redis_client(), f"stock:{sku}", ttl=5),
    "re-entrant": cache(lambda sku: ReentrantLock(RedisLock(redis_client(), f"stock:{sku}", ttl=5))),
    "thread": lambda sku: ThreadLock(f"stock:{sku}"),
}
"""Locks that no sale can choose: one process keeps to itself, and the others gain it nothing over `redis-lock`."""


@pytest.mark.parametrize("name", [*FENCED, "file-lock", "session-lock", *NOT_ON_SALE])
def test_the_lock_is_held_in_save_and_free_after_the_answer_and_busy_is_not_sold_out(ledger: Ledger, name: str) -> None:
    if name in NOT_ON_SALE:
        stock.deliver("a", 1)
        strategy: Strategy = Locked(name, NOT_ON_SALE[name], wait=1)
    else:
        strategy = preheated(name, {"a": 1})
    assert isinstance(strategy, Locked)
    impatient = Locked(name, strategy.make_lock, wait=0)

    def rival() -> None:
        with pytest.raises(StockBusy):
            elsewhere(lambda: impatient.place(new_request(("a", 1)), ledger.save))

    strategy.place(new_request(("a", 1)), lambda requests: (rival(), ledger.save(requests))[1])
    lease = strategy.make_lock("a").acquire(blocking=False)
    assert lease is not None
    assert lease.release()
    ledger.assert_law(a=(0, 1))


def test_a_lock_whose_row_is_missing_is_made_by_preheating(ledger: Ledger) -> None:
    stock.deliver("a", 1)
    strategy = registry.get("lock-table")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM lock_row")
    with pytest.raises(StockNotLoaded, match="no row 'stock:a'"):
        strategy.place(new_request(("a", 1)), ledger.save)
    for _ in range(2):
        strategy.preheat(["a"], nobody)
    strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(0, 1))


SERVERS = {"REDLOCK_URLS": "redlock", "ETCD_URL": "etcd-lock", "ZOOKEEPER_HOSTS": "zookeeper-lock"}


def test_a_lock_can_be_chosen_when_its_server_is_known() -> None:
    ours = {strategy.name for strategy in lock_strategies()}
    assert ours == {"insert-lock", "lock-table", "file-lock", "redis-lock", "session-lock"}
    assert ours <= set(NAMES)
    assert not set(SERVERS.values()) & set(NAMES)
    for setting, name in SERVERS.items():
        with override_settings(**{setting: ["redis://a"] if setting == "REDLOCK_URLS" else "http://a"}):
            assert {strategy.name for strategy in lock_strategies()} - ours == {name}
    with override_settings(LOCK_FOLDER=""):
        assert ours - {strategy.name for strategy in lock_strategies()} == {"file-lock"}


def test_given_no_folder_for_its_files_a_file_lock_is_unavailable(ledger: Ledger, tmp_path: Path) -> None:
    stock.deliver("a", 1)
    nowhere = str(tmp_path / "no" / "folder")
    with override_settings(LOCK_FOLDER=nowhere), pytest.raises(StockUnavailable, match="folder exists"):
        registry.get("file-lock").place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 0))


def test_a_lock_in_postgres_connects_where_the_shop_does_and_leaves_out_what_only_django_knows() -> None:
    with psycopg.connect(conninfo()) as own, connection.cursor() as cursor:
        cursor.execute("SELECT current_database(), current_user")
        assert own.execute("SELECT current_database(), current_user").fetchone() == cursor.fetchone()


def test_given_no_postgres_for_the_lock_it_is_unavailable(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stock.deliver("a", 1)
    monkeypatch.setattr(locks, "conninfo", lambda: f"host={tmp_path}")
    for name in ("insert-lock", "lock-table", "session-lock"):
        with pytest.raises(StockUnavailable):
            registry.get(name).place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 0))
