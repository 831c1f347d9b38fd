"""`segmented-lock`: each segment has a row and a fence, and unsplit stock is sold, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import IntegrityError, transaction
from redis import Redis

from inventory import stock
from inventory.errors import SoldOut, StockBusy
from inventory.models import StockItem, StockSegment
from inventory.requests import Placement
from inventory.strategies import registry, segmented_lock
from inventory.strategies.locks import stock_lock
from inventory.strategies.segmented import Segmented
from locking import Lease, RedisLock
from tests.factories import interleaved, new_request, nobody
from tests.inventory.conftest import Ledger, PausedAfterGrant, replace_in_script
from tests.inventory.segments_support import buy, make, units_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy(ledger: Ledger) -> Segmented:
    """The strategy with ten units of `a` in five segments."""
    return make("segmented-lock", units=10)


def fences() -> list[int]:
    return list(StockSegment.objects.order_by("number").values_list("fence", flat=True))


@pytest.fixture
def paused(strategy: Segmented, ledger: Ledger, redis: Redis) -> Segmented:
    """A strategy whose orders pause when they have the lock of segment 0. Another order then takes a unit there."""

    def lock(sku: str, number: int) -> RedisLock:
        if number:
            return stock_lock(sku, number)
        return PausedAfterGrant(redis, stock_lock(sku, 0).name, lambda: buy(make("segmented-lock"), ledger, (sku, 1)))

    return make("segmented-lock", make_lock=lock)


@pytest.mark.parametrize("wanted", [1, 5], ids=["one segment", "all segments"])
def test_an_overtaken_holder_changes_nothing(paused: Segmented, ledger: Ledger, wanted: int) -> None:
    with pytest.raises(StockBusy, match=r"a / 0: fence .* overtaken"):
        buy(paused, ledger, ("a", wanted))
    assert units_of(paused) == [1, 2, 2, 2, 2]
    assert len(ledger.orders()) == 1
    ledger.assert_law(a=(9, 1))


def test_without_the_fence_it_writes(paused: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in_script(monkeypatch, segmented_lock, "CLAIM", " AND fence < %(fence)s")
    assert buy(paused, ledger, ("a", 1)) is Placement.COMMITTED
    assert units_of(paused) == [0, 2, 2, 2, 2]
    monkeypatch.setattr(segmented_lock, "set_fences", lambda segments, leases: None)
    assert buy(paused, ledger, ("a", 5)) is Placement.COMMITTED
    ledger.assert_law(a=(2, 8))


def test_taking_from_all_sets_every_fence(strategy: Segmented, ledger: Ledger) -> None:
    buy(strategy, ledger, ("a", 5))
    first = fences()
    assert all(first)
    buy(strategy, ledger, ("a", 5))
    assert all(before < later for before, later in zip(first, fences(), strict=True))


@pytest.mark.parametrize("between", ["fewer segments", "unloaded"])
def test_an_unused_segment_keeps_its_fence(strategy: Segmented, ledger: Ledger, between: str) -> None:
    buy(strategy, ledger, ("a", 5))
    before = fences()
    if between == "unloaded":
        strategy.unload(["a"])
    else:
        make("segmented-lock", segments=2).preheat(["a"], nobody)
    strategy.preheat(["a"], nobody)
    assert fences() == before


def test_a_lock_without_a_fence_is_an_error(strategy: Segmented, ledger: Ledger, redis: Redis) -> None:
    class Fenceless(RedisLock):
        @contextmanager
        def hold(self, timeout: float | None = None) -> Iterator[Lease]:
            with super().hold(timeout) as lease:
                lease.fence = None
                yield lease

    fenceless = make("segmented-lock", make_lock=lambda sku, number: Fenceless(redis, f"{sku}:{number}"))
    with pytest.raises(ValueError, match="gives a fence"):
        buy(fenceless, ledger, ("a", 1))
    ledger.assert_law(a=(10, 0))


def test_without_the_guard_the_constraint_refuses(
    strategy: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in_script(monkeypatch, segmented_lock, "CLAIM", " AND on_hand >= %(quantity)s")
    strategy._cached_units("a")
    StockSegment.objects.filter(number=0).update(on_hand=0)
    StockItem.objects.update(on_hand=2)
    with pytest.raises(IntegrityError, match="segment_on_hand_not_negative"):
        buy(strategy, ledger, ("a", 1))
    ledger.assert_law(a=(10, 0))


def test_unload_merges_all_units(strategy: Segmented, ledger: Ledger) -> None:
    assert StockItem.objects.get().on_hand == 0
    buy(strategy, ledger, ("a", 1))
    strategy.unload(["a"])
    assert (StockItem.objects.get().on_hand, units_of(strategy)) == (9, [0, 0, 0, 0, 0])
    registry.get("guarded-update").place(new_request(("a", 9)), ledger.save)
    ledger.assert_law(a=(0, 10))


def test_unsplit_stock_is_sold(ledger: Ledger) -> None:
    """Unsplit stock is sold without being split, because it may belong to another sale by now."""
    stock.deliver("a", 6)
    strategy = make("segmented-lock")
    buy(strategy, ledger, ("a", 1))
    assert (StockItem.objects.get().on_hand, units_of(strategy)) == (5, [])
    ledger.assert_law(a=(5, 1))


def test_unsplit_units_count_before_sold_out(strategy: Segmented, ledger: Ledger) -> None:
    stock.deliver("a", 3)
    with pytest.raises(SoldOut, match="a: 14 wanted, 13 left"):
        buy(strategy, ledger, ("a", 14))
    buy(strategy, ledger, ("a", 13))
    ledger.assert_law(a=(0, 13))


def test_segments_added_after_locking_are_counted(strategy: Segmented, ledger: Ledger) -> None:
    def splits() -> None:
        make("segmented-lock", segments=8).preheat(["a"], nobody)

    with interleaved(splits, before="FOR NO KEY UPDATE"):
        assert buy(strategy, ledger, ("a", 10)) is Placement.COMMITTED
    assert StockSegment.objects.count() == 8
    ledger.assert_law(a=(0, 10))


def test_units_merged_between_the_reads_are_counted(strategy: Segmented, ledger: Ledger) -> None:
    with interleaved(lambda: strategy.unload(["a"]), after="SELECT .*number"):
        assert buy(strategy, ledger, ("a", 5)) is Placement.COMMITTED
    ledger.assert_law(a=(5, 5))


def test_splitting_locks_all_rows(strategy: Segmented, ledger: Ledger) -> None:
    free = []

    def look() -> None:
        with transaction.atomic():
            for rows in (StockItem.objects.all(), StockSegment.objects.all()):
                free.append(len(rows.select_for_update(skip_locked=True)))

    with interleaved(look, before="INSERT INTO .inventory_stocksegment"):
        strategy.preheat(["a"], nobody)
    assert free == [0, 0]


def test_without_row_locks_a_sold_unit_reappears(
    strategy: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_read(sku: str) -> tuple[StockItem, list[StockSegment]]:
        return StockItem.objects.get(sku=sku), list(StockSegment.objects.filter(item=sku))

    monkeypatch.setattr(segmented_lock, "lock_rows", only_read)
    other = make("segmented-lock")
    with interleaved(lambda: buy(other, ledger, ("a", 1)), before="UPDATE .?inventory_stockitem"):
        strategy.preheat(["a"], nobody)
    assert ledger.figures()["a"].drift == -1


def test_preheat_of_an_unknown_sku_creates_nothing(strategy: Segmented, ledger: Ledger) -> None:
    strategy.preheat(["a", "unknown"], nobody)
    strategy.unload(["unknown"])
    assert set(StockSegment.objects.values_list("item", flat=True)) == {"a"}
    ledger.assert_law(a=(10, 0))
