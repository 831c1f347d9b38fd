"""`unit-rows`: a locked unit does not count as sold out, and no order waits while it holds units."""

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
from inventory.strategies.unit_rows import TooFewUnlocked, UnitRows, take_unlocked, take_waiting
from tests.factories import at_once, begin, count_by_kind, elsewhere, interleaved, new_request, nobody, slow
from tests.inventory.conftest import Ledger, after, execute, put_on_sale
from tests.waiting import WAIT_TIMEOUT

pytestmark = pytest.mark.django_db(transaction=True)


def on_sale(rows: int = 1000, **units: int) -> UnitRows:
    """Deliver and preheat stock. Return the strategy, with at most `rows` unit rows per sku."""
    strategy = UnitRows(rows=rows)
    put_on_sale(strategy, **units)
    return strategy


def where(sku: str) -> tuple[int, int]:
    """Return a sku's number of unsplit units and its number of unit rows."""
    return StockItem.objects.get(sku=sku).on_hand, StockUnit.objects.filter(item=sku).count()


def buy(strategy: UnitRows, ledger: Ledger, *cart: tuple[str, int]) -> Placement:
    return strategy.place(new_request(*cart or [("a", 1)]), ledger.save)


def test_preheat_splits_and_unload_merges(ledger: Ledger) -> None:
    strategy = on_sale(a=3, b=2)
    assert (where("a"), where("b")) == ((0, 3), (0, 2))
    stock.deliver("a", 3)
    for _ in range(2):
        strategy.preheat(["a"], nobody)
        assert where("a") == (0, 6)
    strategy.unload(["a"])
    assert (where("a"), where("b")) == ((6, 0), (0, 2))
    strategy.unload(["a", "b"])
    assert (where("a"), where("b")) == ((6, 0), (2, 0))
    ledger.assert_law(a=(6, 0), b=(2, 0))


def test_the_rest_stays_unsplit_until_needed(ledger: Ledger) -> None:
    strategy = on_sale(rows=2, a=6)
    seen = [where("a")]
    for _ in range(6):
        buy(strategy, ledger)
        seen.append(where("a"))
    assert seen == [(4, 2), (4, 1), (4, 0), (1, 2), (1, 1), (1, 0), (0, 0)]
    with pytest.raises(SoldOut, match="a: 1 wanted, 0 left"):
        buy(strategy, ledger)
    ledger.assert_law(a=(0, 6))


def test_an_item_is_taken_from_rows_and_unsplit_units(ledger: Ledger) -> None:
    strategy = on_sale(rows=2, a=3, b=2, c=9)
    with pytest.raises(SoldOut, match="b: 3 wanted, 2 left"):
        buy(strategy, ledger, ("a", 3), ("b", 3))
    assert (where("a"), where("b"), where("c")) == ((1, 2), (0, 2), (7, 2)), "a refusal takes nothing"
    buy(strategy, ledger, ("a", 3), ("b", 2), ("c", 5))
    assert (where("a"), where("b"), where("c")) == ((0, 0), (0, 0), (2, 2))
    ledger.assert_law(a=(0, 3), b=(0, 2), c=(4, 5))


def refuse(orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
    return {order.id: OverLimit("a", limit=0, taken=0) for order in orders}


def hold_a_unit(strategy: UnitRows, meanwhile: Callable[[], object], save: Save) -> None:
    """Take one unit of `a`, and run an action before the order is saved or refused."""
    order, held = new_request(("a", 1)), after(meanwhile, save)
    if save is refuse:
        with pytest.raises(OverLimit):
            strategy.place(order, held)
    else:
        strategy.place(order, held)


def begin_while_held(strategy: UnitRows, save: Save, body: Callable[[], Any]) -> Future[Any]:
    """Start an action while an order holds a unit of `a`. Return the action's future once both have ended."""
    with ThreadPoolExecutor(1) as pool:
        later: list[Future[Any]] = []

        def start() -> None:
            later.append(begin(pool, body))
            assert not later[0].done() or later[0].exception() is not None

        hold_a_unit(strategy, start, save)
        later[0].exception(WAIT_TIMEOUT)
    return later[0]


@pytest.mark.parametrize(
    ("saved", "waits", "answer", "left"),
    [(False, True, "COMMITTED", 0), (True, True, "SoldOut", 0), (False, False, "StockElsewhere", 1)],
    ids=["the first order fails", "the first order commits", "without waiting"],
)
def test_an_order_waits_for_a_locked_unit(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, saved: bool, waits: bool, answer: str, left: int
) -> None:
    """An order waits until the first order has ended. Negative control: without waiting, a unit is not sold."""
    if not waits:
        take = unit_rows._take
        monkeypatch.setattr(unit_rows, "_take", lambda sku, units, locked: take(sku, units, "SKIP LOCKED"))
    strategy = on_sale(a=1)
    later = begin_while_held(strategy, ledger.save if saved else refuse, partial(buy, strategy, ledger))
    assert count_by_kind([later.exception() or later.result()]) == {answer: 1}
    ledger.assert_law(a=(left, 1 - left))


def test_too_many_units_are_refused_without_waiting(ledger: Ledger) -> None:
    strategy = on_sale(a=1)

    def rival() -> None:
        with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
            elsewhere(lambda: buy(strategy, ledger, ("a", 2)))

    hold_a_unit(strategy, rival, ledger.save)
    ledger.assert_law(a=(0, 1))


def test_an_unlocked_unit_needs_no_waiting(ledger: Ledger) -> None:
    strategy = on_sale(a=2)

    def rival() -> None:
        with transaction.atomic():
            stock.lock(["a"])
            elsewhere(lambda: buy(strategy, ledger))

    hold_a_unit(strategy, lambda: elsewhere(rival), ledger.save)
    ledger.assert_law(a=(0, 2))


@pytest.mark.parametrize("moved", ["split", "merged"])
def test_units_moved_between_the_attempts_are_found(ledger: Ledger, moved: str) -> None:
    strategy = on_sale(a=1)
    if moved == "split":
        strategy.unload(["a"])
        moving = interleaved(lambda: strategy.preheat(["a"], nobody), after="^\\s*DELETE")
    else:
        moving = interleaved(lambda: strategy.unload(["a"]), before="^\\s*DELETE")
    with moving:
        assert buy(strategy, ledger) is Placement.COMMITTED
    ledger.assert_law(a=(0, 1))


@pytest.mark.parametrize("locked", [True, False])
def test_the_stock_row_is_locked_in_the_second_attempt(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    """The second attempt locks the stock row. Negative control: without the lock, a preheat splits the stock."""
    strategy = on_sale(a=1)
    strategy.unload(["a"])
    rows: list[int] = []
    if not locked:
        monkeypatch.setattr(stock, "lock", stock.unsplit)

    def move() -> None:
        execute("SET lock_timeout = '100ms'")
        try:
            strategy.preheat(["a"], nobody)
        finally:
            rows.append(where("a")[1])

    error, reason = (OperationalError, "lock timeout") if locked else (StockElsewhere, "a is split")
    with pytest.raises(error, match=reason), interleaved(move, before="^UPDATE"):
        buy(strategy, ledger)
    assert rows == [0 if locked else 1]


@pytest.mark.parametrize(("save", "left"), [("fails", 2), ("is saved", 1)])
def test_unload_waits_for_orders_in_progress(ledger: Ledger, save: str, left: int) -> None:
    strategy = on_sale(a=2)
    begin_while_held(strategy, refuse if save == "fails" else ledger.save, lambda: strategy.unload(["a"])).result()
    assert where("a") == (left, 0)
    ledger.assert_law(a=(left, 2 - left))


class KeepsItsUnits(UnitRows):
    """Makes the second attempt in the transaction of the first one, which still holds units."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            try:
                for item in order.items:
                    take_unlocked(item)
            except TooFewUnlocked:
                unsplit = stock.lock(order.skus)
                for item in order.items:
                    take_waiting(item, unsplit[item.sku])
            save_one(order, save)
        return Placement.COMMITTED


@pytest.mark.parametrize(
    ("kind", "error", "reason"),
    [(UnitRows, SoldOut, "a: 2 wanted, 1 left"), (KeepsItsUnits, OperationalError, "deadlock detected")],
    ids=["rolls back", "keeps its units"],
)
def test_no_deadlock_between_the_attempts(
    ledger: Ledger, kind: type[UnitRows], error: type[Exception], reason: str
) -> None:
    """The second attempt starts a new transaction. Negative control: in the same transaction, two orders deadlock."""
    on_sale(rows=1, a=2)
    strategy = kind(rows=1)
    with ThreadPoolExecutor(1) as pool:
        rival: list[Future[Any]] = []

        def buy_the_other() -> Any:
            execute("SET deadlock_timeout = '60s'")  # Make Postgres report the deadlock to the first order.
            return buy(UnitRows(rows=1), ledger)

        def step(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            result = execute(sql, *rest)
            if sql.lstrip().startswith("DELETE") and not rival:
                rival.append(begin(pool, buy_the_other))
                assert not rival[0].done()
            return result

        execute("SET deadlock_timeout = '50ms'")
        with connection.execute_wrapper(step), pytest.raises(error, match=reason):
            buy(strategy, ledger, ("a", 2))
        assert rival[0].result(WAIT_TIMEOUT) is Placement.COMMITTED
    connection.close()
    ledger.assert_law(a=(1, 1))


@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_random_carts_sell_everything(ledger: Ledger, seed: int) -> None:
    """Orders fail at random, and units move between rows. Each refused order still finds too few units at the end."""
    strategy = on_sale(rows=3, a=20, b=20, c=20)
    refused: list[SoldOut] = []

    def buys(chance: Random) -> None:
        for _ in range(10):
            cart = [(sku, chance.randint(1, 3)) for sku in chance.sample("abc", chance.randint(1, 3))]
            try:
                strategy.place(new_request(*cart), refuse if chance.random() < 0.4 else ledger.save)
            except OverLimit:
                continue
            except SoldOut as error:
                refused.append(error)

    def move() -> None:
        for _ in range(10):
            strategy.unload(["a", "b", "c"])
            strategy.preheat(["a", "b", "c"], nobody)

    answers = at_once(*[partial(buys, Random(f"{seed} {number}")) for number in range(8)], move)  # noqa: S311
    assert count_by_kind(answers) == {"None": 9}
    assert refused
    assert all(error.left < error.wanted for error in refused)
    figures = ledger.figures()
    assert all(row.conserved for row in figures.values())
    assert all(figures[error.sku].on_hand < error.wanted for error in refused)
