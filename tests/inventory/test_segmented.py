"""Segments, in rows or in Redis: nothing is stranded in them, nobody waits in a circle, and N may change meanwhile."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from redis import Redis

from inventory import audit, stock
from inventory.errors import SoldOut, StockBusy
from inventory.requests import OrderRequest, Placement, Returned
from inventory.strategies.registry import stock_lock
from inventory.strategies.segmented import Held, Moved, Segmented, round_robin
from inventory.strategies.segmented_lock import SegmentedLock
from inventory.strategies.segmented_redis import SegmentedRedis
from locking import held
from tests.factories import at_once, elsewhere, new_request, tally, to_the_end
from tests.inventory.conftest import Ledger
from tests.inventory.segments_support import NAMES, Locks, make, put_on_sale, second_buyer_of_the_last_unit, units_of
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("name", NAMES)]

CLASSES = {"segmented-lock": SegmentedLock, "segmented-redis": SegmentedRedis}


def buy(strategy: Segmented, ledger: Ledger, *cart: tuple[str, int]) -> Placement:
    return strategy.place(new_request(*cart), ledger.save)


# The split


@pytest.mark.parametrize(
    ("units", "segments", "split"),
    [(10, 5, [2, 2, 2, 2, 2]), (12, 5, [3, 3, 2, 2, 2]), (2, 5, [1, 1, 0, 0, 0]), (7, 1, [7])],
    ids=["even", "uneven", "few", "one"],
)
def test_preheating_splits_the_stock_evenly(
    ledger: Ledger, name: str, units: int, segments: int, split: list[int]
) -> None:
    strategy = make(name, segments=segments)
    put_on_sale(strategy, a=units)
    assert units_of(strategy, "a") == split
    ledger.assert_law(a=(units, 0))


@pytest.mark.parametrize(
    ("segments", "split"), [(2, [4, 3, 0, 0, 0]), (8, [1, 1, 1, 1, 1, 1, 1, 0])], ids=["fewer", "more"]
)
def test_preheating_with_another_number_splits_anew_and_moves_nothing_else(
    ledger: Ledger, name: str, segments: int, split: list[int]
) -> None:
    put_on_sale(make(name), a=8)
    buy(make(name), ledger, ("a", 1))
    other = make(name, segments=segments)
    other.preheat(["a"], ledger.saved)
    assert units_of(other, "a") == split
    ledger.assert_law(a=(7, 1))


def test_a_sku_is_split_into_one_segment_at_least(name: str) -> None:
    with pytest.raises(ValueError, match="one segment at least"):
        make(name, segments=0)


# Which segment


def test_a_segment_that_is_busy_is_passed_over(ledger: Ledger, name: str) -> None:
    strategy = make(name)
    put_on_sale(strategy, a=10)
    with stock_lock("a", 0).hold():
        buy(strategy, ledger, ("a", 1))
    assert units_of(strategy, "a") == [2, 1, 2, 2, 2]


def test_a_segment_that_was_seen_exhausted_is_skipped(ledger: Ledger, name: str) -> None:
    locks = Locks()
    strategy = make(name, make_lock=locks)
    put_on_sale(strategy, a=10)
    for _ in range(4):
        buy(strategy, ledger, ("a", 1))
    assert locks.asked == [("a", 0), ("a", 0), ("a", 1), ("a", 1)]
    assert units_of(strategy, "a") == [0, 0, 2, 2, 2]


def test_an_exhausted_mark_is_no_reason_to_say_sold_out(ledger: Ledger, name: str) -> None:
    """A process that has seen everything go sells what another one has gathered or preheated since."""
    strategy = make(name)
    put_on_sale(strategy, a=5)
    assert {strategy.place(new_request(("a", 1)), ledger.save) for _ in range(5)} == {Placement.COMMITTED}
    stock.deliver("a", 5)
    make(name).preheat(["a"], ledger.saved)
    assert buy(strategy, ledger, ("a", 1)) is Placement.COMMITTED
    ledger.assert_law(a=(4, 6))


def test_a_segment_that_others_exhausted_meanwhile_is_left_for_one_that_covers(ledger: Ledger, name: str) -> None:
    strategy = make(name)
    put_on_sale(strategy, a=5)
    strategy._look("a")
    other = make(name)
    buy(other, ledger, ("a", 1))
    assert units_of(strategy, "a") == [0, 1, 1, 1, 1]
    buy(strategy, ledger, ("a", 1))
    assert units_of(strategy, "a") == [0, 0, 1, 1, 1]


def test_round_robin_takes_them_in_turn(ledger: Ledger, name: str) -> None:
    strategy = make(name, start=round_robin())
    put_on_sale(strategy, a=20)
    for _ in range(7):
        buy(strategy, ledger, ("a", 1))
    assert units_of(strategy, "a") == [2, 2, 3, 3, 3]


@pytest.mark.parametrize("turns", ["of each sku", "one for all"])
def test_the_items_of_a_cart_do_not_fall_into_step(ledger: Ledger, name: str, turns: str) -> None:
    one = itertools.count()
    start = round_robin() if turns == "of each sku" else lambda sku, segments: next(one) % segments
    strategy = make(name, segments=2, start=start)
    put_on_sale(strategy, a=8, b=8)
    for _ in range(4):
        buy(strategy, ledger, ("a", 1), ("b", 1))
    found = (units_of(strategy, "a"), units_of(strategy, "b"))
    assert found == (([2, 2], [2, 2]) if turns == "of each sku" else ([0, 4], [4, 0]))


def test_a_random_start_spreads_the_buyers(ledger: Ledger, name: str) -> None:
    locks = Locks()
    put_on_sale(make(name), a=100)
    chance = random.Random(1)  # noqa: S311 - no secret
    strategy = make(name, make_lock=locks, start=lambda sku, segments: chance.randrange(segments))
    for _ in range(30):
        buy(strategy, ledger, ("a", 1))
    assert {number for _, number in locks.asked} == set(range(5))


# Nothing is stranded


def test_a_cart_that_no_single_segment_covers_is_served_from_the_total(ledger: Ledger, name: str) -> None:
    strategy = make(name)
    put_on_sale(strategy, a=5)
    assert buy(strategy, ledger, ("a", 3)) is Placement.COMMITTED
    with pytest.raises(SoldOut) as refused:
        buy(strategy, ledger, ("a", 3))
    assert (refused.value.wanted, refused.value.left) == (3, 2)
    assert buy(strategy, ledger, ("a", 2)) is Placement.COMMITTED
    ledger.assert_law(a=(0, 5))


def test_what_is_left_after_gathering_is_spread_again(ledger: Ledger, name: str) -> None:
    strategy = make(name)
    put_on_sale(strategy, a=100)
    buy(strategy, ledger, ("a", 30))
    assert units_of(strategy, "a") == [14, 14, 14, 14, 14]
    ledger.assert_law(a=(70, 30))


def test_without_gathering_it_is_sold_out_with_stock_left(ledger: Ledger, name: str) -> None:
    """The negative control: what one segment has is taken for what is left."""
    base: Any = CLASSES[name]

    class Strands(base):
        def left(self, sku: str) -> int:
            return max(self.look(sku).values())

    strategy = make(name, Strands)
    put_on_sale(strategy, a=5)
    with pytest.raises(SoldOut) as refused:
        buy(strategy, ledger, ("a", 3))
    assert (refused.value.left, ledger.figures()["a"].on_hand) == (1, 5)


def test_carts_of_several_units_in_contention_leave_nothing_that_a_refused_one_wanted(
    ledger: Ledger, name: str
) -> None:
    put_on_sale(make(name), a=23)
    sizes = [1, 2, 3, 4] * 8
    processes = [make(name) for _ in range(3)]
    buyers = [
        partial(to_the_end, processes[at % 3], new_request(("a", size)), ledger.save) for at, size in enumerate(sizes)
    ]
    answers = at_once(*buyers)
    left = ledger.figures()["a"].on_hand
    refused = [answer for answer in answers if isinstance(answer, SoldOut)]
    assert len(refused) + answers.count(Placement.COMMITTED) == len(sizes)
    assert all(answer.left < answer.wanted for answer in refused)
    assert refused
    assert left < min(answer.wanted for answer in refused)
    ledger.assert_law(a=(left, 23 - left))


@pytest.mark.parametrize("wanted", [1, 3])
def test_what_came_back_is_sold(ledger: Ledger, name: str, wanted: int) -> None:
    strategy = make(name)
    put_on_sale(strategy, a=5)
    buy(strategy, ledger, ("a", 5))
    with pytest.raises(SoldOut):
        buy(strategy, ledger, ("a", 1))
    ledger.forget(3)
    stock.give_back([("a", 3)])
    strategy.given_back([Returned(1, 1, "a", 3)], ledger.saved)
    assert buy(strategy, ledger, ("a", wanted)) is Placement.COMMITTED
    ledger.assert_law(a=(3 - wanted, 2 + wanted))


def test_who_is_refused_asks_for_no_lock(ledger: Ledger, name: str) -> None:
    locks = Locks()
    strategy = make(name, make_lock=locks)
    put_on_sale(strategy, a=1)
    with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
        buy(strategy, ledger, ("a", 2))
    assert locks.asked == []


def test_the_last_unit_is_not_sold_out_while_the_order_that_has_it_may_still_fail(
    ledger: Ledger, redis: Redis, name: str
) -> None:
    assert second_buyer_of_the_last_unit(make(name), ledger, redis) is Placement.COMMITTED
    ledger.assert_law(a=(0, 1))


# Busy is not sold out


@pytest.mark.parametrize("wanted", [1, 5])
def test_when_every_segment_is_held_the_answer_is_busy(ledger: Ledger, name: str, wanted: int) -> None:
    strategy = make(name, wait=0.01)
    put_on_sale(strategy, a=5)
    holders = [stock_lock("a", number).acquire() for number in range(5)]
    with pytest.raises(StockBusy, match="stock:a:"):
        buy(strategy, ledger, ("a", wanted))
    assert all(lease is not None and lease.release() for lease in holders)
    ledger.assert_law(a=(5, 0))


def test_stock_that_moves_every_time_is_busy_in_the_end(ledger: Ledger, name: str) -> None:
    base: Any = CLASSES[name]

    class Moves(base):
        def sell(self, order: OrderRequest, held: Sequence[Held], save: object) -> None:
            raise Moved("a")

    strategy = make(name, Moves, wait=0.05)
    put_on_sale(strategy, a=5)
    with pytest.raises(StockBusy, match="moved between its segments"):
        buy(strategy, ledger, ("a", 1))
    ledger.assert_law(a=(5, 0))


# Nobody waits in a circle


def in_the_worst_order(redis: Redis, lock: tuple[str, int]) -> Callable[[str, int], None]:
    """For two buyers: who asks for this lock waits until the other one has it, waits for another one, or is done."""
    first = threading.Event()

    def before(sku: str, number: int) -> None:
        if (sku, number) == lock and not first.is_set():
            first.set()
            name = stock_lock(*lock).name
            wait_for(lambda: any(each.name == name or each.waiters for each in held(redis)), "the other buyer")

    return before


def test_one_who_gathers_and_one_who_holds_a_later_sku_do_not_wait_for_each_other(
    ledger: Ledger, redis: Redis, name: str
) -> None:
    """The first has a:0 and needs all of b; the second has b:0, and needs all of a: he asked for that before."""
    strategy = make(name, make_lock=Locks(in_the_worst_order(redis, ("b", 0))))
    put_on_sale(strategy, a=10, b=10)
    carts = [("a", 1), ("b", 8)], [("b", 1), ("a", 8)]
    answers = at_once(*[partial(buy, strategy, ledger, *cart) for cart in carts])
    assert tally(answers) == {"COMMITTED": 2}
    ledger.assert_law(a=(1, 9), b=(1, 9))


def backwards(kind: type[Segmented]) -> type[Segmented]:
    """A strategy that takes the locks from the other end."""
    base: Any = kind

    class Backwards(base):
        def _hold(self, item: Any, leases: Any, until: float) -> Held:
            numbers = sorted(self.look(item.sku), reverse=True)
            return Held(item, None, {number: self._wait(item.sku, number, leases, until) for number in numbers})

    return Backwards


def two_who_gather(
    name: str, ledger: Ledger, redis: Redis, kinds: Sequence[type[Segmented]], wait: float
) -> dict[str, int]:
    """Two buyers who need all segments. Each asks for the second lock when the other has his first one or waits."""
    strategies = []
    met = threading.Event()
    for kind in kinds:
        asked: list[int] = []

        def before(sku: str, number: int, asked: list[int] = asked) -> None:
            asked.append(number)
            if len(asked) == 2 and not met.is_set():
                wait_for(lambda: len(held(redis)) + sum(each.waiters for each in held(redis)) > 1, "the other buyer")
                met.set()

        strategies.append(make(name, kind, make_lock=Locks(before), wait=wait))
    put_on_sale(strategies[0], a=10)
    return tally(at_once(*[partial(buy, strategy, ledger, ("a", 5)) for strategy in strategies]))


def test_two_who_gather_do_not_wait_for_each_other(ledger: Ledger, redis: Redis, name: str) -> None:
    assert two_who_gather(name, ledger, redis, [CLASSES[name]] * 2, PATIENCE) == {"COMMITTED": 2}
    ledger.assert_law(a=(0, 10))


def test_when_one_of_them_takes_the_locks_from_the_other_end_nobody_gets_on(
    ledger: Ledger, redis: Redis, name: str
) -> None:
    """The negative control of the order."""
    answers = two_who_gather(name, ledger, redis, [CLASSES[name], backwards(CLASSES[name])], 1.0)
    assert answers.get("StockBusy", 0) >= 1
    assert ledger.figures()["a"].on_hand >= 5


def test_single_buyers_and_gatherers_of_opposite_carts_all_get_on(ledger: Ledger, name: str) -> None:
    processes = [make(name, start=round_robin()) for _ in range(4)]
    put_on_sale(processes[0], a=60, b=60, c=60)
    carts = [
        [("a", 1), ("b", 6)],
        [("b", 1), ("a", 6)],
        [("c", 6), ("a", 1)],
        [("b", 6), ("c", 6)],
        [("a", 1)],
        [("c", 1), ("b", 1), ("a", 1)],
        [("a", 13)],
        [("b", 1), ("c", 13)],
    ]
    buyers = [
        partial(to_the_end, processes[at % 4], new_request(*cart), ledger.save) for at, cart in enumerate(carts * 2)
    ]
    assert tally(at_once(*buyers)) == {"COMMITTED": 16}
    sold = {sku: 2 * sum(units for cart in carts for each, units in cart if each == sku) for sku in "abc"}
    ledger.assert_law(**{sku: (60 - units, units) for sku, units in sold.items()})


# The number changes while it sells


def of_one_moment(ledger: Ledger) -> Mapping[str, audit.Figures]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return ledger.figures()


def test_the_number_of_segments_changes_while_32_buyers_buy(ledger: Ledger, name: str) -> None:
    processes = [make(name, segments=segments) for segments in (5, 2, 8)]
    put_on_sale(processes[0], a=90)

    def buys(strategy: Segmented) -> list[Placement]:
        return [to_the_end(strategy, new_request(("a", 1 + at % 2)), ledger.save) for at in range(2)]

    def splits() -> list[str]:
        for segments in (3, 1, 7, 4, 8, 2):
            make(name, segments=segments).preheat(["a"], ledger.saved)
            assert all(row.conserved for row in of_one_moment(ledger).values())
        return ["SPLIT"]

    answers = at_once(*[partial(buys, processes[at % 3]) for at in range(30)], splits, splits)
    assert tally([each for answer in answers for each in (answer if isinstance(answer, list) else [answer])]) == {
        "COMMITTED": 60,
        "SPLIT": 2,
    }
    assert elsewhere(lambda: sum(units_of(processes[0], "a"))) == 0
    ledger.assert_law(a=(0, 90))
