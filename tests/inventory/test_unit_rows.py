"""`unit-rows`: a unit that somebody holds is not sold out, and nobody waits with units in hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from inventory import stock
from inventory.errors import OverLimit, Refusal, SoldOut, StockElsewhere
from inventory.models import StockItem, StockUnit
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies import unit_rows
from inventory.strategies.unit_rows import TooFewFree, UnitRows, take_all, take_free
from tests.factories import at_once, begin, elsewhere, interleaved, new_request, nobody, tally
from tests.inventory.conftest import Ledger
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


def on_sale(rows: int = 1000, **units: int) -> UnitRows:
    """The strategy, with stock in at most so many rows a sku."""
    for sku, received in units.items():
        stock.deliver(sku, received)
    strategy = UnitRows(rows=rows)
    strategy.preheat(list(units), nobody)
    return strategy


def where(sku: str) -> tuple[int, int]:
    """Units in the pool, and in rows."""
    return StockItem.objects.get(sku=sku).on_hand, StockUnit.objects.filter(item=sku).count()


# Rows and pool


def test_preheating_moves_the_pool_into_rows_and_unloading_moves_it_back(ledger: Ledger) -> None:
    strategy = on_sale(a=3, b=2)
    assert (where("a"), where("b")) == ((0, 3), (0, 2))
    strategy.unload(["a"])
    assert (where("a"), where("b")) == ((3, 0), (0, 2))
    strategy.unload(["a", "b"])
    assert (where("a"), where("b")) == ((3, 0), (2, 0))
    ledger.assert_law(a=(3, 0), b=(2, 0))


def test_preheating_again_makes_rows_of_what_has_come_since(ledger: Ledger) -> None:
    strategy = on_sale(a=2)
    stock.deliver("a", 3)
    strategy.preheat(["a"], nobody)
    strategy.preheat(["a"], nobody)
    assert where("a") == (0, 5)


def test_what_is_more_than_the_rows_stays_in_the_pool_until_they_are_used_up(ledger: Ledger) -> None:
    strategy = on_sale(rows=2, a=6)
    seen = [where("a")]
    for _ in range(6):
        strategy.place(new_request(("a", 1)), ledger.save)
        seen.append(where("a"))
    assert seen == [(4, 2), (4, 1), (4, 0), (1, 2), (1, 1), (1, 0), (0, 0)]
    with pytest.raises(SoldOut, match="a: 1 wanted, 0 left"):
        strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(0, 6))


def test_a_line_is_taken_from_rows_and_pool_together_and_each_line_from_where_its_units_are(ledger: Ledger) -> None:
    strategy = on_sale(rows=2, a=3, b=2, c=9)
    strategy.place(new_request(("a", 3), ("b", 2), ("c", 5)), ledger.save)
    assert (where("a"), where("b"), where("c")) == ((0, 0), (0, 0), (2, 2))
    ledger.assert_law(a=(0, 3), b=(0, 2), c=(4, 5))


def test_a_refusal_counts_rows_and_pool_and_takes_from_neither(ledger: Ledger) -> None:
    strategy = on_sale(rows=2, a=3, b=2)
    with pytest.raises(SoldOut, match="b: 3 wanted, 2 left"):
        strategy.place(new_request(("a", 3), ("b", 3)), ledger.save)
    assert (where("a"), where("b")) == ((1, 2), (0, 2))


def test_what_comes_to_the_pool_is_sold_when_the_rows_are_used_up(ledger: Ledger) -> None:
    strategy = on_sale(a=1)
    stock.deliver("a", 1)
    assert where("a") == (1, 1)
    for _ in range(2):
        strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(0, 2))


def test_nothing_is_sold_of_rows_that_are_not_the_skus(ledger: Ledger) -> None:
    strategy = on_sale(a=5)
    with pytest.raises(SoldOut, match="b: 1 wanted, 0 left"):
        strategy.place(new_request(("b", 1)), ledger.save)
    assert where("a") == (0, 5)


def test_it_can_sell_what_nobody_has_preheated(ledger: Ledger) -> None:
    stock.deliver("a", 2)
    UnitRows().place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 1))


# Units that others hold


def refuse(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
    return {request.id: OverLimit("a", limit=0, taken=0) for request in requests}


def hold_the_last_unit(strategy: UnitRows, meanwhile: Callable[[], object], save: Save) -> None:
    """Take the only unit of `a`, and let something happen before it is known whether the order is saved."""

    def pause(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        meanwhile()
        return save(requests)

    strategy.place(new_request(("a", 1)), pause)


def test_a_unit_whose_order_fails_is_sold_to_the_one_who_waited(ledger: Ledger) -> None:
    strategy = on_sale(a=1)
    with ThreadPoolExecutor(1) as pool:
        later: list[Future[Any]] = []

        def rival() -> None:
            later.append(begin(pool, lambda: strategy.place(new_request(("a", 1)), ledger.save)))

        with pytest.raises(OverLimit):
            hold_the_last_unit(strategy, rival, refuse)
        assert later[0].result(PATIENCE) is Placement.COMMITTED
    ledger.assert_law(a=(0, 1))


def test_without_the_second_look_he_is_sent_away_though_the_unit_is_there(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    take = unit_rows._take
    monkeypatch.setattr(unit_rows, "_take", lambda sku, units, locked: take(sku, units, "SKIP LOCKED"))
    strategy = on_sale(a=1)
    with ThreadPoolExecutor(1) as pool:
        later: list[Future[Any]] = []

        def rival() -> None:
            later.append(begin(pool, lambda: strategy.place(new_request(("a", 1)), ledger.save)))

        with pytest.raises(OverLimit):
            hold_the_last_unit(strategy, rival, refuse)
        with pytest.raises(StockElsewhere):
            later[0].result(PATIENCE)
    ledger.assert_law(a=(1, 0))


def test_a_unit_whose_order_is_saved_is_sold_out_for_the_one_who_waited(ledger: Ledger) -> None:
    strategy = on_sale(a=1)
    with ThreadPoolExecutor(1) as pool:
        later: list[Future[Any]] = []

        def rival() -> None:
            later.append(begin(pool, lambda: strategy.place(new_request(("a", 1)), ledger.save)))
            assert not later[0].done()

        hold_the_last_unit(strategy, rival, ledger.save)
        with pytest.raises(SoldOut, match="a: 1 wanted, 0 left"):
            later[0].result(PATIENCE)
    ledger.assert_law(a=(0, 1))


def test_who_wants_more_than_there_is_at_all_is_refused_without_waiting(ledger: Ledger) -> None:
    strategy = on_sale(a=1)

    def rival() -> None:
        with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
            elsewhere(lambda: strategy.place(new_request(("a", 2)), ledger.save))

    hold_the_last_unit(strategy, rival, ledger.save)
    ledger.assert_law(a=(0, 1))


def test_a_buyer_of_a_free_unit_waits_for_nobody_who_holds_another_or_the_stock_row(ledger: Ledger) -> None:
    strategy = on_sale(a=2)

    def rival() -> None:
        with transaction.atomic():
            stock.lock(["a"])
            elsewhere(lambda: strategy.place(new_request(("a", 1)), ledger.save))

    hold_the_last_unit(strategy, lambda: elsewhere(rival), ledger.save)
    ledger.assert_law(a=(0, 2))


# Units that move


def test_units_that_are_made_rows_after_the_first_look_are_found_by_the_second(ledger: Ledger) -> None:
    strategy = on_sale(a=1)
    strategy.unload(["a"])
    with interleaved(lambda: strategy.preheat(["a"], nobody), after="^\\s*DELETE"):
        assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(0, 1))


def test_units_that_go_back_to_the_pool_after_the_first_look_are_found_by_the_second(ledger: Ledger) -> None:
    strategy = on_sale(a=1)
    with interleaved(lambda: strategy.unload(["a"]), before="^\\s*DELETE"):
        assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(0, 1))


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
def test_nothing_moves_between_the_second_look_and_the_pool(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    """The negative control: without the lock on the stock row the unit moves behind the buyer's back."""
    strategy = on_sale(a=1)
    strategy.unload(["a"])
    rows: list[int] = []
    if not locked:
        monkeypatch.setattr(stock, "lock", stock.pools)

    def move() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        try:
            strategy.preheat(["a"], nobody)
        finally:
            rows.append(where("a")[1])

    def buy() -> None:
        with interleaved(move, before="^UPDATE"):
            strategy.place(new_request(("a", 1)), ledger.save)

    if locked:
        with pytest.raises(OperationalError, match="lock timeout"):
            buy()
        assert rows == [0]
    else:
        with pytest.raises(StockElsewhere):
            buy()
        assert rows == [1]


@pytest.mark.parametrize(("save", "left"), [("fails", 2), ("is saved", 1)])
def test_unloading_waits_for_orders_on_their_way_and_moves_what_comes_back_of_them(
    ledger: Ledger, save: str, left: int
) -> None:
    strategy = on_sale(a=2)
    with ThreadPoolExecutor(1) as pool:
        later: list[Future[Any]] = []

        def unload() -> None:
            later.append(begin(pool, lambda: strategy.unload(["a"])))
            assert not later[0].done()

        if save == "fails":
            with pytest.raises(OverLimit):
                hold_the_last_unit(strategy, unload, refuse)
        else:
            hold_the_last_unit(strategy, unload, ledger.save)
        later[0].result(PATIENCE)
    assert where("a") == (left, 0)
    ledger.assert_law(a=(left, 2 - left))


# No deadlock


class KeepsWhatItHas(UnitRows):
    """Looks again in the same transaction, with the units of the first look in hand."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            try:
                for item in order.items:
                    take_free(item)
            except TooFewFree:
                pools = stock.lock(order.skus)
                for item in order.items:
                    take_all(item, pools[item.sku])
            save_one(order, save)
        return Placement.COMMITTED


@pytest.mark.parametrize(
    ("kind", "error", "why"),
    [(UnitRows, SoldOut, "a: 2 wanted, 1 left"), (KeepsWhatItHas, OperationalError, "deadlock detected")],
    ids=["lets go", "keeps what it has"],
)
def test_a_first_look_and_a_second_do_not_wait_for_each_other(
    ledger: Ledger, kind: type[UnitRows], error: type[Exception], why: str
) -> None:
    """One buyer has one of his two units from a first look; another holds the stock row, and waits for that unit."""
    on_sale(rows=1, a=2)
    strategy = kind(rows=1)
    with ThreadPoolExecutor(1) as pool:
        rival: list[Future[Any]] = []

        def buy_the_other() -> Any:
            with connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '60s'")  # It is not he who is told of it.
            return UnitRows(rows=1).place(new_request(("a", 1)), ledger.save)

        def come_by() -> None:
            if not rival:
                rival.append(begin(pool, buy_the_other))
                assert not rival[0].done()

        def step(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            result = execute(sql, *rest)
            if sql.lstrip().startswith("DELETE"):
                come_by()
            return result

        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '50ms'")
        with connection.execute_wrapper(step), pytest.raises(error, match=why):
            strategy.place(new_request(("a", 2)), ledger.save)
        assert rival[0].result(PATIENCE) is Placement.COMMITTED
    connection.close()
    ledger.assert_law(a=(1, 1))


@pytest.mark.parametrize("seed", range(3))
def test_carts_at_random_that_fail_at_random_while_units_move_sell_everything_and_nobody_deadlocks(
    ledger: Ledger, seed: int
) -> None:
    """Who is told "sold out" could not have been served, so in the end there is nothing that anybody was refused."""
    strategy = on_sale(rows=3, a=20, b=20, c=20)
    refused: list[SoldOut] = []

    def buy(chance: Random) -> None:
        def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
            return refuse(requests) if chance.random() < 0.4 else ledger.save(requests)

        for _ in range(15):
            cart = [(sku, chance.randint(1, 3)) for sku in chance.sample("abc", chance.randint(1, 3))]
            try:
                strategy.place(new_request(*cart), save)
            except OverLimit:
                continue
            except SoldOut as error:
                refused.append(error)

    def move() -> None:
        for _ in range(20):
            strategy.unload(["a", "b", "c"])
            strategy.preheat(["a", "b", "c"], nobody)

    answers = at_once(*[partial(buy, Random(f"{seed} {number}")) for number in range(12)], move)  # noqa: S311
    assert tally(answers) == {"None": 13}
    assert refused
    assert all(error.left < error.wanted for error in refused)
    figures = ledger.figures()
    assert all(row.conserved for row in figures.values())
    assert all(figures[error.sku].on_hand < error.wanted for error in refused)
