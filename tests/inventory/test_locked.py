"""The lock strategies with any lock: fences of several kinds, locks without a fence, missing locks."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from django.test import override_settings

from inventory import stock
from inventory.errors import SoldOut, StockBusy, StockElsewhere, StockNotLoaded, StockUnavailable
from inventory.models import StockItem
from inventory.strategies import locked, locks, registry
from inventory.strategies.locked import Locked
from inventory.strategies.locks import conninfo
from tests.factories import elsewhere, new_request, nobody, preheated
from tests.inventory.conftest import Ledger, after, execute, fetch, replace_in_script
from tests.locking.support import acquired

pytestmark = pytest.mark.django_db(transaction=True)

FENCED = ["insert-lock", "lock-table", "redis-lock"]


def last_fence() -> tuple[str, int]:
    return StockItem.objects.values_list("fenced_by", "fence").get()


@pytest.mark.parametrize("other", ["insert-lock", "lock-table"])
def test_a_sku_changes_its_kind_of_lock(ledger: Ledger, other: str) -> None:
    """A sku can change to a lock with far lower fences: `insert-lock` counts from 1, the others count microseconds."""
    preheated(other, {"a": 4})
    seen = []
    for name in ("redis-lock", other, other, "redis-lock"):
        registry.get(name).place(new_request(("a", 1)), ledger.save)
        seen.append(last_fence())
    assert [name for name, _ in seen] == ["redis-lock", other, other, "redis-lock"]
    assert seen[1][1] < seen[2][1]
    assert seen[0][1] < seen[3][1]
    ledger.assert_law(a=(0, 4))


def test_without_the_kind_the_second_never_sells(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in_script(monkeypatch, locked, "CLAIM", " OR fenced_by <> %(kind)s")
    preheated("redis-lock", {"a": 2}).place(new_request(("a", 1)), ledger.save)
    with pytest.raises(StockElsewhere, match="a is split for"):
        registry.get("insert-lock").place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 1))


@pytest.mark.parametrize("name", FENCED)
def test_a_lower_fence_of_one_kind_is_overtaken(ledger: Ledger, name: str) -> None:
    strategy = preheated(name, {"a": 1})
    StockItem.objects.update(fence=2**62, fenced_by=name)
    with pytest.raises(StockBusy, match="overtaken"):
        strategy.place(new_request(("a", 1)), ledger.save)
    StockItem.objects.update(fence=2**62, fenced_by="another")
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 2)), ledger.save)
    assert last_fence() == ("another", 2**62), "a refusal writes none"
    strategy.place(new_request(("a", 1)), ledger.save)
    assert last_fence()[0] == name
    ledger.assert_law(a=(0, 1))


@pytest.mark.parametrize("name", ["file-lock", "session-lock"])
def test_a_lock_without_a_fence_writes_none(ledger: Ledger, name: str) -> None:
    preheated("redis-lock", {"a": 2}).place(new_request(("a", 1)), ledger.save)
    before = last_fence()
    registry.get(name).place(new_request(("a", 1)), ledger.save)
    assert last_fence() == before
    ledger.assert_law(a=(0, 2))


@pytest.mark.parametrize("name", [*FENCED, "file-lock", "session-lock"])
def test_the_lock_is_held_in_save(ledger: Ledger, name: str) -> None:
    strategy = preheated(name, {"a": 1})
    assert isinstance(strategy, Locked)
    impatient = Locked(name, strategy.make_lock, wait=0)

    def rival() -> None:
        with pytest.raises(StockBusy):
            elsewhere(lambda: impatient.place(new_request(("a", 1)), ledger.save))

    strategy.place(new_request(("a", 1)), after(rival, ledger.save))
    assert acquired(strategy.make_lock("a"), blocking=False).release()
    ledger.assert_law(a=(0, 1))


def test_preheat_inserts_the_lock_row(ledger: Ledger) -> None:
    stock.deliver("a", 1)
    strategy = registry.get("lock-table")
    execute("DELETE FROM lock_row")
    with pytest.raises(StockNotLoaded, match="no row 'stock:a'"):
        strategy.place(new_request(("a", 1)), ledger.save)
    for _ in range(2):
        strategy.preheat(["a"], nobody)
    strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(0, 1))


def test_without_its_folder_or_postgres_a_lock_is_unavailable(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stock.deliver("a", 1)
    monkeypatch.setattr(locks, "conninfo", lambda: f"host={tmp_path}")
    with override_settings(LOCK_FOLDER=str(tmp_path / "no" / "folder")):
        for name in ("file-lock", "insert-lock", "lock-table", "session-lock"):
            with pytest.raises(StockUnavailable, match="folder exists" if name == "file-lock" else "No such file"):
                registry.get(name).place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 0))


def test_locks_connect_to_the_shops_postgres() -> None:
    server = "SELECT (current_database(), current_user)::text"
    with psycopg.connect(conninfo()) as own:
        assert own.execute(server).fetchall() == [(row,) for row in fetch(server)]
