"""`segmented-redis`: Redis admits from N keys, Postgres decides, and `all keys + reserved = on hand` in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from redis import Redis, RedisError
from redis.crc import key_slot

from inventory import stock
from inventory.counters import whole as module
from inventory.counters.segmented import SegmentCounters, how_many_key, name_of
from inventory.counters.whole import NOTES, SCRIPTS, counter_key
from inventory.errors import Refusal, SoldOut, StockNotLoaded, StockReserved
from inventory.requests import OrderRequest, Placement
from inventory.strategies import registry
from inventory.strategies.registry import stock_lock
from inventory.strategies.segmented import Segmented
from inventory.strategies.segmented_redis import SegmentedRedis
from tests.factories import elsewhere, new_request, nobody
from tests.inventory.conftest import Ledger
from tests.inventory.segments_support import make, put_on_sale, second_buyer_of_the_last_unit, units_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy(ledger: Ledger) -> Segmented:
    """Ten units of `a` in five segments."""
    made: Segmented = make("segmented-redis")
    put_on_sale(made, a=10)
    return made


@pytest.fixture
def counters(redis: Redis) -> SegmentCounters:
    return registry.segment_counters()


def a_process_dies(counters: SegmentCounters, number: int, *, units: int = 1) -> OrderRequest:
    """The request for which it has taken units of a segment of `a`; nothing was saved."""
    request = new_request(("a", units))
    counters.take(replace(request, items=(replace(request.items[0], sku=name_of("a", number)),)))
    return request


# Redis and Postgres agree


def test_in_save_the_units_are_reserved_from_their_key_and_at_rest_they_are_sold(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters
) -> None:
    seen = []

    def look(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        seen.append((units_of(strategy, "a"), counters.reserved(), elsewhere(lambda: stock.on_hand("a"))))
        return ledger.save(requests)

    strategy.place(new_request(("a", 2)), look)
    assert seen == [([0, 2, 2, 2, 2], {name_of("a", 0): 2}, 10)]
    assert counters.reserved() == {}
    ledger.assert_law(a=(8, 2))


def test_units_of_a_failed_save_go_back_to_their_key(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters
) -> None:
    def fail(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        raise KeyError

    with pytest.raises(KeyError):
        strategy.place(new_request(("a", 2)), fail)
    assert units_of(strategy, "a") == [2, 2, 2, 2, 2]
    ledger.assert_law(a=(10, 0))


def test_the_law_counts_every_key(strategy: Segmented, ledger: Ledger, counters: SegmentCounters) -> None:
    """The negative control of what the other tests end with."""
    counters.client.incr(counter_key(name_of("a", 4)))
    with pytest.raises(AssertionError):
        ledger.assert_law(a=(10, 0))


# A process dies between Redis and Postgres


def test_units_of_a_process_that_died_are_noted_and_go_back_to_their_key(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters
) -> None:
    """Whoever reconciles knows the note, and nothing of segments."""
    a_process_dies(counters, 3, units=2)
    assert units_of(strategy, "a") == [2, 2, 2, 0, 2]
    (note,) = counters.notes()
    assert registry.counters().give_back(note.request, [name for name, _ in note.items])
    assert units_of(strategy, "a") == [2, 2, 2, 2, 2]
    ledger.assert_law(a=(10, 0))


def test_what_a_process_that_died_has_reserved_is_not_sold_out_until_it_is_known_whose_it_is(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters
) -> None:
    dead = a_process_dies(counters, 3, units=2)
    with pytest.raises(StockReserved):
        strategy.place(new_request(("a", 9)), ledger.save)
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 11)), ledger.save)
    strategy.place(new_request(("a", 8)), ledger.save)
    with pytest.raises(StockReserved):
        strategy.place(new_request(("a", 1)), ledger.save)
    counters.give_back(dead.id, [name_of("a", 3)])
    strategy.place(new_request(("a", 2)), ledger.save)
    ledger.assert_law(a=(0, 10))


@pytest.mark.parametrize(("saved", "left"), [(False, 8), (True, 10)], ids=["on its way", "an order"])
def test_loading_again_counts_what_is_noted_unless_it_is_an_order(
    strategy: Segmented, counters: SegmentCounters, saved: bool, left: int
) -> None:
    a_process_dies(counters, 3, units=2)
    counters.client.delete(how_many_key("a"))
    strategy.preheat(["a"], lambda requests: set(requests) if saved else set())
    assert sum(units_of(strategy, "a")) == left


@pytest.mark.parametrize("back", ["before", "after"])
def test_units_that_come_back_to_a_segment_that_is_not_used_any_more_are_sold(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters, back: str
) -> None:
    request = a_process_dies(counters, 4)
    fewer = make("segmented-redis", segments=2)
    if back == "after":
        fewer.preheat(["a"], nobody)
        assert units_of(fewer, "a") == [5, 4, 0, 0, 0]
    counters.give_back(request.id, [name_of("a", 4)])
    fewer.place(new_request(("a", 10)), ledger.save)
    ledger.assert_law(a=(0, 10))


def test_more_reserved_than_on_hand_leaves_the_sum_below_zero_and_nothing_is_admitted(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters
) -> None:
    """Another strategy has sold what a dead process has reserved."""
    request = a_process_dies(counters, 0, units=2)
    registry.get("guarded-update").place(new_request(("a", 9)), ledger.save)
    strategy.refresh(["a"], ledger.saved)
    assert sum(units_of(strategy, "a")) == -1
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 2)), ledger.save)
    counters.give_back(request.id, [name_of("a", 0)])
    assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(0, 10))


def test_who_forgets_what_is_reserved_refuses_the_last_unit_falsely(ledger: Ledger, redis: Redis) -> None:
    """The negative control: see test_segmented for the buyer who waits until the other order has failed."""

    class Forgets(SegmentedRedis):
        def left(self, sku: str) -> int:
            return sum(self.look(sku).values())

    answer = second_buyer_of_the_last_unit(make("segmented-redis", Forgets), ledger, redis)
    assert isinstance(answer, SoldOut)
    assert ledger.figures()["a"].on_hand == 1


# Redis is wrong, or empty


@pytest.mark.parametrize("lost", ["all", "one", "since it was looked at"])
def test_keys_that_are_missing_are_not_loaded_and_not_sold_out(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters, lost: str
) -> None:
    strategy.place(new_request(("a", 1)), ledger.save)
    if lost == "one":
        counters.client.delete(counter_key(name_of("a", 0)))
    else:
        counters.unload_segments(["a"])
    if lost == "all":
        strategy.forget("a")
    with pytest.raises(StockNotLoaded):
        strategy.place(new_request(("a", 1)), ledger.save)
    strategy.preheat(["a"], ledger.saved)
    assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(8, 2))


def test_unloading_leaves_no_key(strategy: Segmented, ledger: Ledger, redis: Redis) -> None:
    strategy.unload(["a", "unknown"])
    assert list(redis.scan_iter("{stock}*")) == []
    ledger.assert_law(a=(10, 0))


def test_keys_above_the_truth_are_refused_by_the_guard_in_sql_and_trusted_no_more(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters
) -> None:
    registry.get("guarded-update").place(new_request(("a", 9)), ledger.save)
    with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
        strategy.place(new_request(("a", 2)), ledger.save)
    assert counters.segments("a") is None
    strategy.preheat(["a"], ledger.saved)
    assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(0, 10))


def test_it_is_refused_also_when_redis_has_gone_meanwhile(
    strategy: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.get("guarded-update").place(new_request(("a", 9)), ledger.save)

    def gone(*rest: Any) -> None:
        raise RedisError("gone")

    monkeypatch.setattr(SegmentCounters, "unload_segments", gone)
    with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
        strategy.place(new_request(("a", 2)), ledger.save)


# The script that spreads


def test_whoever_gathers_holds_every_lock_or_nothing_moves(strategy: Segmented, counters: SegmentCounters) -> None:
    assert counters.gather("a", 4, 4, 5) is None
    assert counters.gather("unknown", 5, 5, 1) is None
    assert units_of(strategy, "a") == [2, 2, 2, 2, 2]
    assert counters.segments("unknown") is None


def test_without_the_look_at_how_many_there_are_units_are_left_out(
    strategy: Segmented, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: who knows of four of five segments says that less is left than there is."""
    guard = "there_are > known or"
    assert guard in SCRIPTS["rebalance"]
    monkeypatch.setitem(module.SCRIPTS, "rebalance", SCRIPTS["rebalance"].replace(guard, ""))
    assert SegmentCounters(redis).gather("a", 4, 4, 9) == 8


def test_fewer_than_are_wanted_stay_where_they_are(strategy: Segmented, counters: SegmentCounters) -> None:
    counters.client.decr(counter_key(name_of("a", 2)))
    assert counters.gather("a", 5, 5, 10) == 9
    assert units_of(strategy, "a") == [2, 2, 1, 2, 2]


def test_gathering_gives_the_first_key_what_is_wanted_and_its_share_of_the_rest(
    strategy: Segmented, counters: SegmentCounters
) -> None:
    assert counters.gather("a", 5, 3, 3) == 10
    assert units_of(strategy, "a") == [6, 2, 2, 0, 0]


def test_loading_says_by_how_much_the_keys_were_wrong(strategy: Segmented, counters: SegmentCounters) -> None:
    assert counters.load_segments("a", 5, 10, (), make=False) == 0
    assert counters.load_segments("a", 5, 12, (), make=False) == 2
    assert counters.load_segments("b", 5, 12, (), make=False) is None
    assert counters.load_segments("b", 5, 12, (), make=True) == 0
    assert (units_of(strategy, "a"), units_of(strategy, "b")) == ([3, 3, 2, 2, 2], [3, 3, 2, 2, 2])


def test_how_many_there_are_never_becomes_fewer_also_where_redis_has_come_back_older(
    strategy: Segmented, ledger: Ledger, counters: SegmentCounters
) -> None:
    """Units may be reserved from those beyond, and come back to them."""
    request = a_process_dies(counters, 4)
    counters.client.set(how_many_key("a"), 3)
    assert counters.gather("a", 5, 3, 1) == 9
    counters.give_back(request.id, [name_of("a", 4)])
    strategy.place(new_request(("a", 10)), ledger.save)
    ledger.assert_law(a=(0, 10))


@pytest.mark.parametrize("sku", ["a", "café-☕", "with}brace", "{stock}", "a" * 64])
def test_every_key_of_a_sku_is_in_the_slot_of_the_notes(sku: str) -> None:
    keys = [how_many_key(sku), counter_key(name_of(sku, 4))]
    assert {key_slot(key.encode()) for key in keys} == {key_slot(NOTES.encode())}


def test_a_segment_of_one_sku_is_never_another_sku_nor_of_it(counters: SegmentCounters) -> None:
    counters.load_segments("a", 2, 4, (), make=True)
    counters.load_segments("a1", 2, 40, (), make=True)
    counters.load("a", 7, (), make=True)
    assert counters.segments("a") == ([2, 2], 0)
    assert counters.left(["a", "a0", "a1"]) == {"a": 7, "a0": None, "a1": None}


# Postgres changed


def test_who_has_no_keys_is_left_alone_and_its_row_too(strategy: Segmented, ledger: Ledger) -> None:
    stock.deliver("b", 1)
    statements: list[str] = []

    def listen(execute: Callable[..., object], sql: str, *rest: object) -> object:
        statements.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(listen):
        strategy.refresh(["b"], ledger.saved)
    assert statements == []


def test_when_redis_is_gone_it_says_so(ledger: Ledger, tmp_path: Path) -> None:
    """Whoever asked logs it, and the keys are wrong until they are reconciled."""
    gone = SegmentCounters(Redis.from_url(f"unix://{tmp_path}/nobody.sock", retry=None))
    with pytest.raises(RedisError):
        SegmentedRedis(lambda: gone, stock_lock, wait=1, segments=5).refresh(["a"], ledger.saved)
