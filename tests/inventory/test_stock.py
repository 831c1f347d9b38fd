"""The guarded writes of stock, and the constraints that stand behind the guard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from inventory import stock
from inventory.errors import SoldOut
from inventory.models import StockItem
from inventory.strategies.guarded_update import GuardedUpdate
from tests.factories import at_once, interleaved, new_request, tally
from tests.inventory.conftest import Ledger


def row() -> tuple[int, int, int]:
    return StockItem.objects.values_list("received", "on_hand", "version").get(sku="a")


@pytest.fixture
def three(db: None) -> None:
    stock.deliver("a", 3)


@pytest.mark.parametrize("quantity", [1, 2, 3])
def test_take_subtracts_what_is_there(three: None, quantity: int) -> None:
    stock.take("a", quantity)
    assert row() == (3, 3 - quantity, 1)


@pytest.mark.parametrize("quantity", [4, 2**62])
def test_take_refuses_what_is_not_there_and_changes_nothing(three: None, quantity: int) -> None:
    with pytest.raises(SoldOut) as refused:
        stock.take("a", quantity)
    assert (refused.value.sku, refused.value.wanted, refused.value.left) == ("a", quantity, 3)
    assert row() == (3, 3, 0)


def test_take_of_an_unknown_sku_is_sold_out_with_none_left_and_makes_no_row(db: None) -> None:
    with pytest.raises(SoldOut) as refused:
        stock.take("a", 1)
    assert refused.value.left == 0
    assert not StockItem.objects.exists()


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        pytest.param({"on_hand": F("on_hand") - 4}, "stock_on_hand_not_negative", id="below zero"),
        pytest.param({"on_hand": F("on_hand") + 1}, "stock_on_hand_at_most_received", id="more than ever came"),
        pytest.param({"received": 2}, "stock_on_hand_at_most_received", id="received lowered below on hand"),
    ],
)
def test_behind_the_guard_stands_the_constraint(three: None, change: dict[str, object], constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        StockItem.objects.filter(sku="a").update(**change)
    assert row() == (3, 3, 0)


def unguarded(sku: str, units: int) -> None:
    """`take` with its guard off: reads, decides, then subtracts."""
    if (left := stock.on_hand(sku)) < units:
        raise SoldOut(sku, wanted=units, left=left)
    StockItem.objects.filter(sku=sku).update(on_hand=F("on_hand") - units)


@contextmanager
def without_the_constraint() -> Iterator[None]:
    """The stock table as it would be without its CHECK."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE inventory_stockitem DROP CONSTRAINT stock_on_hand_not_negative")
        try:
            yield
        finally:
            cursor.execute("UPDATE inventory_stockitem SET on_hand = 0 WHERE on_hand < 0")
            cursor.execute(
                "ALTER TABLE inventory_stockitem ADD CONSTRAINT stock_on_hand_not_negative CHECK (on_hand >= 0)"
            )


@pytest.mark.django_db(transaction=True)
class TestTheLastUnitIsBoughtInBetween:
    """The same purchase in between, each time with one guard less."""

    @staticmethod
    def buy_while_somebody_buys(ledger: Ledger) -> None:
        stock.deliver("a", 1)

        def buy() -> None:
            GuardedUpdate().place(new_request(("a", 1)), ledger.save)

        with interleaved(buy, before="^UPDATE .?inventory_stockitem"):
            buy()

    def test_the_guard_says_sold_out(self, ledger: Ledger) -> None:
        with pytest.raises(SoldOut):
            self.buy_while_somebody_buys(ledger)
        ledger.assert_law(a=(0, 1))

    def test_with_the_guard_off_the_constraint_refuses(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stock, "take", unguarded)
        with pytest.raises(IntegrityError, match="stock_on_hand_not_negative"):
            self.buy_while_somebody_buys(ledger)
        ledger.assert_law(a=(0, 1))

    def test_with_both_off_it_is_sold_twice(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stock, "take", unguarded)
        with without_the_constraint():
            self.buy_while_somebody_buys(ledger)
            figures = ledger.figures()["a"]
            assert (figures.received, figures.on_hand, figures.sold) == (1, -1, 2)
            assert (figures.drift, figures.oversold, figures.conserved) == (0, 1, False)


def test_give_back_adds_to_what_is_on_hand_and_to_nothing_else(three: None) -> None:
    stock.deliver("b", 1)
    stock.take("a", 3)
    stock.give_back([("a", 1), ("a", 1), ("unknown", 5)])
    assert row() == (3, 2, 3)
    assert list(StockItem.objects.values_list("sku", "on_hand")) == [("a", 2), ("b", 1)]


def test_give_back_locks_the_skus_in_order_whatever_order_they_come_in(three: None) -> None:
    with CaptureQueriesContext(connection) as captured:
        stock.give_back([("d", 1), ("b", 1), ("c", 1)])
    updates = [re.search(r"sku\" = '(.)'", query["sql"]) for query in captured]
    assert [found[1] for found in updates if found] == ["b", "c", "d"]


def test_a_delivery_is_received_and_on_hand(db: None) -> None:
    stock.deliver("a", 2)
    stock.deliver("a", 3)
    assert row() == (5, 5, 1)


@pytest.mark.parametrize("quantity", [0, -1])
def test_a_delivery_of_nothing_is_a_mistake(three: None, quantity: int) -> None:
    with pytest.raises(ValueError, match="at least one unit"):
        stock.deliver("a", quantity)
    assert row() == (3, 3, 0)


@pytest.mark.django_db(transaction=True)
def test_deliveries_of_a_new_sku_at_the_same_moment_are_all_received() -> None:
    assert tally(at_once(*[lambda: stock.deliver("a", 2)] * 8)) == {"None": 8}
    assert row()[:2] == (16, 16)


def test_on_hand_of_an_unknown_sku_is_nothing(three: None) -> None:
    assert (stock.on_hand("a"), stock.on_hand("unknown")) == (3, 0)
