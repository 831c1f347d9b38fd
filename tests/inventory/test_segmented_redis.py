"""`segmented-redis`: Redis admits from N counters and Postgres decides. `all counters + reserved = on hand`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis import Redis, RedisError

from inventory import stock
from inventory.counters import segmented
from inventory.counters.segmented import SegmentCounters, segment_count_key, segment_name
from inventory.counters.whole import counter_key
from inventory.errors import SoldOut, StockNotLoaded, StockReserved
from inventory.requests import OrderRequest, Placement
from inventory.strategies import registry
from inventory.strategies.locks import stock_lock
from inventory.strategies.segmented import Segmented
from inventory.strategies.segmented_redis import SegmentedRedis
from tests.factories import new_request, nobody
from tests.inventory.conftest import Ledger, replace_in_script
from tests.inventory.segments_support import buy, make, second_order_of_the_last_unit, units_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy(ledger: Ledger) -> Segmented:
    """The strategy with ten units of `a` in five segments."""
    return make("segmented-redis", units=10)


@pytest.fixture
def counters(redis: Redis) -> SegmentCounters:
    return registry.segment_counters()


def a_process_dies(counters: SegmentCounters, number: int, *, units: int = 1) -> OrderRequest:
    """Reserve units of a segment of `a` for an order that is never saved. Return that order."""
    order = new_request(("a", units))
    counters.take(replace(order, items=(replace(order.items[0], sku=segment_name("a", number)),)))
    return order


def test_units_of_a_dead_process_go_back(strategy: Segmented, ledger: Ledger, counters: SegmentCounters) -> None:
    """Reconciliation returns the reserved units of a dead process to their segment, whose counter it finds by name."""
    a_process_dies(counters, 3, units=2)
    assert units_of(strategy) == [2, 2, 2, 0, 2]
    (found,) = counters.reservations()
    assert registry.counters().give_back(found.order_id, [name for name, _ in found.items])
    assert units_of(strategy) == [2, 2, 2, 2, 2]
    ledger.assert_law(a=(10, 0))
    counters.client.incr(counter_key(segment_name("a", 4)))
    with pytest.raises(AssertionError):  # Negative control: the check of the law includes every counter.
        ledger.assert_law(a=(10, 0))


def test_reserved_units_are_not_sold_out(strategy: Segmented, ledger: Ledger, counters: SegmentCounters) -> None:
    dead = a_process_dies(counters, 3, units=2)
    with pytest.raises(StockReserved):
        buy(strategy, ledger, ("a", 9))
    with pytest.raises(SoldOut):
        buy(strategy, ledger, ("a", 11))
    buy(strategy, ledger, ("a", 8))
    with pytest.raises(StockReserved):
        buy(strategy, ledger, ("a", 1))
    counters.give_back(dead.id, [segment_name("a", 3)])
    buy(strategy, ledger, ("a", 2))
    ledger.assert_law(a=(0, 10))


@pytest.mark.parametrize(("saved", "left"), [(False, 8), (True, 10)], ids=["in progress", "saved"])
def test_load_counts_reservations_unless_saved(
    strategy: Segmented, counters: SegmentCounters, saved: bool, left: int
) -> None:
    a_process_dies(counters, 3, units=2)
    counters.client.delete(segment_count_key("a"))
    strategy.preheat(["a"], lambda order_ids: set(order_ids) if saved else set())
    assert sum(units_of(strategy)) == left


@pytest.mark.parametrize("back", ["before", "after"])
def test_units_back_in_an_unused_segment_are_sold(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters, back: str
) -> None:
    order = a_process_dies(counters, 4)
    fewer = make("segmented-redis", segments=2)
    if back == "after":
        fewer.preheat(["a"], nobody)
        assert units_of(fewer) == [5, 4, 0, 0, 0]
    counters.give_back(order.id, [segment_name("a", 4)])
    buy(fewer, ledger, ("a", 10))
    ledger.assert_law(a=(0, 10))


def test_more_reserved_than_on_hand(strategy: Segmented, ledger: Ledger, counters: SegmentCounters) -> None:
    """Another strategy sells units that a dead process has reserved. The segments then sell only what is left."""
    order = a_process_dies(counters, 0, units=2)
    registry.get("guarded-update").place(new_request(("a", 9)), ledger.save)
    strategy.refresh(["a"], ledger.saved)
    assert sum(units_of(strategy)) == -1
    with pytest.raises(SoldOut):
        buy(strategy, ledger, ("a", 2))
    counters.give_back(order.id, [segment_name("a", 0)])
    assert buy(strategy, ledger, ("a", 1)) is Placement.COMMITTED
    ledger.assert_law(a=(0, 10))


def test_without_reserved_units_it_is_sold_out_early(ledger: Ledger, redis: Redis) -> None:
    """Negative control of `test_the_last_unit_is_not_sold_out_early`: here, reserved units do not count."""

    class Forgets(SegmentedRedis):
        def units_left(self, sku: str) -> int:
            return sum(self.segment_units(sku).values())

    answer = second_order_of_the_last_unit(make("segmented-redis", Forgets), ledger, redis)
    assert isinstance(answer, SoldOut)
    assert ledger.figures()["a"].on_hand == 1


@pytest.mark.parametrize("lost", ["all", "one", "since they were read"])
def test_missing_counters_are_not_loaded(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters, lost: str
) -> None:
    buy(strategy, ledger, ("a", 1))
    if lost == "one":
        counters.client.delete(counter_key(segment_name("a", 0)))
    else:
        counters.unload_segments(["a"])
    if lost == "all":
        strategy.forget("a")
    with pytest.raises(StockNotLoaded):
        buy(strategy, ledger, ("a", 1))
    strategy.preheat(["a"], ledger.saved)
    assert buy(strategy, ledger, ("a", 1)) is Placement.COMMITTED
    ledger.assert_law(a=(8, 2))


def test_unload_leaves_no_key(strategy: Segmented, ledger: Ledger, redis: Redis) -> None:
    strategy.unload(["a", "unknown"])
    assert list(redis.scan_iter("{stock}*")) == []
    ledger.assert_law(a=(10, 0))


def test_rebalance_needs_every_lock(
    strategy: Segmented, counters: SegmentCounters, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert counters.rebalance("a", 4, 4, 5) is None
    assert counters.rebalance("unknown", 5, 5, 1) is None
    assert units_of(strategy) == [2, 2, 2, 2, 2]
    assert counters.segments("unknown") is None
    replace_in_script(monkeypatch, segmented, "REBALANCE", "existing > known or")
    assert SegmentCounters(redis).rebalance("a", 4, 4, 9) == 8, "negative control: units are missed"


def test_rebalance_fills_the_first_counter(strategy: Segmented, counters: SegmentCounters) -> None:
    assert counters.rebalance("a", 5, 3, 3) == 10
    assert units_of(strategy) == [6, 2, 2, 0, 0]
    assert counters.rebalance("a", 5, 5, 11) == 10
    assert units_of(strategy) == [6, 2, 2, 0, 0], "too few units are not moved"


def test_load_returns_the_difference(strategy: Segmented, counters: SegmentCounters) -> None:
    assert counters.load_segments("a", 5, 10, (), make=False) == 0
    assert counters.load_segments("a", 5, 12, (), make=False) == 2
    assert counters.load_segments("b", 5, 12, (), make=False) is None
    assert counters.load_segments("b", 5, 12, (), make=True) == 0
    assert (units_of(strategy, "a"), units_of(strategy, "b")) == ([3, 3, 2, 2, 2], [3, 3, 2, 2, 2])


def test_the_segment_count_never_shrinks(strategy: Segmented, ledger: Ledger, counters: SegmentCounters) -> None:
    """Rebalancing raises a segment count that is too low, because reserved units may return to an uncounted segment."""
    order = a_process_dies(counters, 4)
    counters.client.set(segment_count_key("a"), 3)
    assert counters.rebalance("a", 5, 3, 1) == 9
    counters.give_back(order.id, [segment_name("a", 4)])
    buy(strategy, ledger, ("a", 10))
    ledger.assert_law(a=(0, 10))


def test_segment_names_are_unique(counters: SegmentCounters) -> None:
    counters.load_segments("a", 2, 4, (), make=True)
    counters.load_segments("a1", 2, 40, (), make=True)
    counters.load("a", 7, (), make=True)
    assert counters.segments("a") == ([2, 2], 0)
    assert counters.left(["a", "a0", "a1"]) == {"a": 7, "a0": None, "a1": None}


def test_refresh_without_counters_runs_no_query(strategy: Segmented, ledger: Ledger) -> None:
    stock.deliver("b", 1)
    with CaptureQueriesContext(connection) as queries:
        strategy.refresh(["b"], ledger.saved)
    assert len(queries) == 0


def test_refresh_without_redis_raises(ledger: Ledger, no_redis: Redis) -> None:
    gone = SegmentCounters(no_redis)
    with pytest.raises(RedisError):
        SegmentedRedis(lambda: gone, stock_lock, wait=1, segments=5).refresh(["a"], ledger.saved)
