"""Segments in rows or in Redis: no unit is left unsellable, no orders deadlock, and their number may change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from inventory import stock
from inventory.errors import SoldOut, StockBusy
from inventory.requests import OrderRequest, Placement
from inventory.strategies.locks import stock_lock
from inventory.strategies.segmented import HeldItem, Segmented, SegmentsChanged, round_robin
from locking import held
from tests.factories import at_once, count_by_kind, elsewhere, new_request, to_the_end
from tests.inventory.conftest import Ledger, execute, put_on_sale
from tests.inventory.segments_support import CLASSES, Locks, buy, make, second_order_of_the_last_unit, units_of
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("name", CLASSES)]


@pytest.mark.parametrize(
    ("units", "segments", "split"),
    [(10, 5, [2, 2, 2, 2, 2]), (12, 5, [3, 3, 2, 2, 2]), (2, 5, [1, 1, 0, 0, 0]), (7, 1, [7])],
    ids=["even", "uneven", "few", "one"],
)
def test_preheat_splits_evenly(ledger: Ledger, name: str, units: int, segments: int, split: list[int]) -> None:
    strategy = make(name, segments=segments, units=units)
    assert units_of(strategy) == split
    ledger.assert_law(a=(units, 0))


@pytest.mark.parametrize(
    ("segments", "split"), [(2, [4, 3, 0, 0, 0]), (8, [1, 1, 1, 1, 1, 1, 1, 0])], ids=["fewer", "more"]
)
def test_preheat_changes_the_number(ledger: Ledger, name: str, segments: int, split: list[int]) -> None:
    make(name, units=8)
    buy(make(name), ledger, ("a", 1))
    other = make(name, segments=segments)
    other.preheat(["a"], ledger.saved)
    assert units_of(other) == split
    ledger.assert_law(a=(7, 1))


def test_at_least_one_segment(name: str) -> None:
    with pytest.raises(ValueError, match="at least one segment"):
        make(name, segments=0)


def test_a_held_segment_is_skipped(ledger: Ledger, name: str) -> None:
    strategy = make(name, units=10)
    with stock_lock("a", 0).hold():
        buy(strategy, ledger, ("a", 1))
    assert units_of(strategy) == [2, 1, 2, 2, 2]


def test_an_empty_segment_is_skipped(ledger: Ledger, name: str) -> None:
    locks = Locks()
    strategy = make(name, make_lock=locks, units=10)
    for _ in range(4):
        buy(strategy, ledger, ("a", 1))
    assert locks.asked == [("a", 0), ("a", 0), ("a", 1), ("a", 1)]
    assert units_of(strategy) == [0, 0, 2, 2, 2]


def test_the_cache_is_no_reason_for_sold_out(ledger: Ledger, name: str) -> None:
    strategy = make(name, units=5)
    for _ in range(5):
        buy(strategy, ledger, ("a", 1))
    stock.deliver("a", 5)
    make(name).preheat(["a"], ledger.saved)
    assert buy(strategy, ledger, ("a", 1)) is Placement.COMMITTED
    ledger.assert_law(a=(4, 6))


def test_a_segment_that_became_empty_is_left(ledger: Ledger, name: str) -> None:
    strategy = make(name, units=5)
    strategy._cached_units("a")
    buy(make(name), ledger, ("a", 1))
    assert units_of(strategy) == [0, 1, 1, 1, 1]
    buy(strategy, ledger, ("a", 1))
    assert units_of(strategy) == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("turns", ["for each sku", "one for all"])
def test_round_robin_counts_for_each_sku(ledger: Ledger, name: str, turns: str) -> None:
    one = itertools.count()
    start = round_robin() if turns == "for each sku" else lambda sku, segments: next(one) % segments
    strategy = make(name, segments=2, start=start)
    put_on_sale(strategy, a=8, b=8)
    for _ in range(4):
        buy(strategy, ledger, ("a", 1), ("b", 1))
    expected = ([2, 2], [2, 2]) if turns == "for each sku" else ([0, 4], [4, 0])
    assert (units_of(strategy, "a"), units_of(strategy, "b")) == expected


@pytest.mark.parametrize("adds_up", [True, False])
def test_an_item_larger_than_a_segment(ledger: Ledger, name: str, adds_up: bool) -> None:
    """An item larger than any segment is taken from several. Negative control: if only one segment counts, it fails."""

    class Strands(CLASSES[name]):  # type: ignore[misc]
        def units_left(self, sku: str) -> int:
            return int(max(self.segment_units(sku).values()))

    strategy = make(name, None if adds_up else Strands, units=5)
    if adds_up:
        assert buy(strategy, ledger, ("a", 3)) is Placement.COMMITTED
    with pytest.raises(SoldOut) as refused:
        buy(strategy, ledger, ("a", 3))
    assert (refused.value.wanted, refused.value.left) == (3, 2 if adds_up else 1)
    if adds_up:
        assert buy(strategy, ledger, ("a", 2)) is Placement.COMMITTED
    ledger.assert_law(a=(0, 5) if adds_up else (5, 0))


def test_the_rest_is_rebalanced(ledger: Ledger, name: str) -> None:
    strategy = make(name, units=100)
    buy(strategy, ledger, ("a", 30))
    assert units_of(strategy) == [14, 14, 14, 14, 14]
    ledger.assert_law(a=(70, 30))


def test_contention_strands_no_units(ledger: Ledger, name: str) -> None:
    make(name, units=23)
    sizes, processes = [1, 2, 3, 4] * 4, [make(name) for _ in range(3)]
    orders = [
        partial(to_the_end, processes[at % 3], new_request(("a", size)), ledger.save) for at, size in enumerate(sizes)
    ]
    answers = at_once(*orders)
    left = ledger.figures()["a"].on_hand
    refused = [answer for answer in answers if isinstance(answer, SoldOut)]
    assert len(refused) + answers.count(Placement.COMMITTED) == len(sizes)
    assert all(answer.left < answer.wanted for answer in refused)
    assert refused
    assert left < min(answer.wanted for answer in refused)
    ledger.assert_law(a=(left, 23 - left))


def test_a_refused_order_takes_no_lock(ledger: Ledger, name: str) -> None:
    locks = Locks()
    strategy = make(name, make_lock=locks, units=1)
    with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
        buy(strategy, ledger, ("a", 2))
    assert locks.asked == []


def test_the_last_unit_is_not_sold_out_early(ledger: Ledger, redis: Redis, name: str) -> None:
    assert second_order_of_the_last_unit(make(name), ledger, redis) is Placement.COMMITTED
    ledger.assert_law(a=(0, 1))


@pytest.mark.parametrize("wanted", [1, 5])
def test_all_segments_held_is_busy(ledger: Ledger, name: str, wanted: int) -> None:
    strategy = make(name, wait=0.01, units=5)
    holders = [stock_lock("a", number).acquire() for number in range(5)]
    with pytest.raises(StockBusy, match="stock:a:"):
        buy(strategy, ledger, ("a", wanted))
    assert all(lease is not None and lease.release() for lease in holders)
    ledger.assert_law(a=(5, 0))


def test_segments_that_keep_changing_are_busy(ledger: Ledger, name: str) -> None:
    class Changes(CLASSES[name]):  # type: ignore[misc]
        def sell(self, order: OrderRequest, held: Sequence[HeldItem], save: object) -> None:
            raise SegmentsChanged("a")

    strategy = make(name, Changes, wait=0.05, units=5)
    with pytest.raises(StockBusy, match="kept changing"):
        buy(strategy, ledger, ("a", 1))
    ledger.assert_law(a=(5, 0))


def in_the_worst_order(redis: Redis, lock: tuple[str, int]) -> Callable[[str, int], None]:
    """Return a `before` callback. The first order that wants the lock waits until the other order has it or waits."""
    first = threading.Event()

    def before(sku: str, number: int) -> None:
        if (sku, number) == lock and not first.is_set():
            first.set()
            name = stock_lock(*lock).name
            wait_for(lambda: any(each.name == name or each.waiters for each in held(redis)), "the other order")

    return before


def test_no_deadlock_between_one_and_all_segments(ledger: Ledger, redis: Redis, name: str) -> None:
    """Two orders do not deadlock, because both lock `a` before `b`.

    One locks segment 0 of `a`, then all of `b`. The other locks all of `a`, then segment 0 of `b`.
    """
    strategy = make(name, make_lock=Locks(in_the_worst_order(redis, ("b", 0))))
    put_on_sale(strategy, a=10, b=10)
    carts = [("a", 1), ("b", 8)], [("b", 1), ("a", 8)]
    answers = at_once(*[partial(buy, strategy, ledger, *cart) for cart in carts])
    assert count_by_kind(answers) == {"COMMITTED": 2}
    ledger.assert_law(a=(1, 9), b=(1, 9))


def backwards(kind: Any) -> type[Segmented]:
    """Return a strategy class that takes the locks of all segments in descending order."""

    class Backwards(kind):  # type: ignore[misc]
        def _hold(self, item: Any, leases: Any, until: float) -> HeldItem:
            numbers = sorted(self.segment_units(item.sku), reverse=True)
            return HeldItem(item, None, {number: self._lock(item.sku, number, leases, until) for number in numbers})

    return Backwards


@pytest.mark.parametrize("same_order", [True, False])
def test_no_deadlock_between_two_orders_of_all(ledger: Ledger, redis: Redis, name: str, same_order: bool) -> None:
    """Two orders can lock all segments without a deadlock. Negative control: if one locks backwards, they deadlock."""
    strategies, met = [], threading.Event()
    for kind in (CLASSES[name], CLASSES[name] if same_order else backwards(CLASSES[name])):
        asked: list[int] = []

        def before(sku: str, number: int, asked: list[int] = asked) -> None:
            asked.append(number)
            if len(asked) == 2 and not met.is_set():
                wait_for(lambda: len(held(redis)) + sum(each.waiters for each in held(redis)) > 1, "the other order")
                met.set()

        strategies.append(make(name, kind, make_lock=Locks(before), wait=WAIT_TIMEOUT if same_order else 1.0))
    put_on_sale(strategies[0], a=10)
    answers = count_by_kind(at_once(*[partial(buy, strategy, ledger, ("a", 5)) for strategy in strategies]))
    if same_order:
        assert answers == {"COMMITTED": 2}
        ledger.assert_law(a=(0, 10))
    else:
        assert answers.get("StockBusy", 0) >= 1
        assert ledger.figures()["a"].on_hand >= 5


def test_the_number_changes_while_selling(ledger: Ledger, name: str) -> None:
    processes = [make(name, segments=segments) for segments in (5, 2, 8)]
    put_on_sale(processes[0], a=36)

    def buys(strategy: Segmented) -> list[Placement]:
        return [to_the_end(strategy, new_request(("a", 1 + at % 2)), ledger.save) for at in range(2)]

    def splits() -> list[str]:
        for segments in (3, 1, 7, 4, 8, 2):
            make(name, segments=segments).preheat(["a"], ledger.saved)
            with transaction.atomic():
                execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # Read all figures at one moment.
                assert ledger.figures()["a"].conserved
        return ["SPLIT"]

    answers = at_once(*[partial(buys, processes[at % 3]) for at in range(12)], splits, splits)
    each = [one for answer in answers for one in (answer if isinstance(answer, list) else [answer])]
    assert count_by_kind(each) == {"COMMITTED": 24, "SPLIT": 2}
    assert elsewhere(lambda: sum(units_of(processes[0]))) == 0
    ledger.assert_law(a=(0, 36))
