"""The guarded writes of stock, and the database constraints behind the guards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from inventory import stock
from inventory.errors import SoldOut
from inventory.models import StockItem
from inventory.strategies.guarded_update import GuardedUpdate
from tests.factories import at_once, count_by_kind, interleaved, new_request
from tests.inventory.conftest import Ledger, in_steps


def row() -> tuple[int, int, int]:
    return StockItem.objects.values_list("received", "on_hand", "version").get(sku="a")


@pytest.fixture
def three(db: None) -> None:
    stock.deliver("a", 3)


@pytest.mark.parametrize(("sku", "quantity", "left"), [("a", 4, 3), ("a", 2**62, 3), ("unknown", 1, 0)])
def test_take_refuses_too_many(three: None, sku: str, quantity: int, left: int) -> None:
    with pytest.raises(SoldOut) as refused:
        stock.take(sku, quantity)
    assert (refused.value.sku, refused.value.wanted, refused.value.left) == (sku, quantity, left)
    assert (row(), StockItem.objects.count()) == ((3, 3, 0), 1)
    assert stock.on_hand(sku) == left


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        pytest.param({"on_hand": F("on_hand") - 4}, "stock_on_hand_not_negative", id="below zero"),
        pytest.param({"on_hand": F("on_hand") + 1}, "stock_on_hand_at_most_received", id="more than received"),
        pytest.param({"received": 2}, "stock_on_hand_at_most_received", id="received lowered below on hand"),
    ],
)
def test_the_constraint_backs_the_guard(three: None, change: dict[str, object], constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        StockItem.objects.filter(sku="a").update(**change)
    assert row() == (3, 3, 0)


def unguarded(sku: str, units: int) -> None:
    """`take` without its guard: it reads, decides, then subtracts."""
    if (left := stock.on_hand(sku)) < units:
        raise SoldOut(sku, wanted=units, left=left)
    StockItem.objects.filter(sku=sku).update(on_hand=F("on_hand") - units)


@contextmanager
def without_the_constraint() -> Iterator[None]:
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
@pytest.mark.parametrize(
    ("guarded", "constrained", "error"),
    [(True, True, SoldOut), (False, True, IntegrityError), (False, False, None)],
    ids=["the guard", "the constraint alone", "neither"],
)
def test_the_last_unit_is_sold_in_between(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, guarded: bool, constrained: bool, error: type[Exception] | None
) -> None:
    """A rival takes the last unit just before the UPDATE. Without guard and constraint, the stock becomes negative."""
    if not guarded:
        monkeypatch.setattr(stock, "take", unguarded)
    stock.deliver("a", 1)

    def buy() -> None:
        GuardedUpdate().place(new_request(("a", 1)), in_steps(ledger.save))

    with nullcontext() if constrained else without_the_constraint():
        refused = pytest.raises(error) if error else nullcontext()
        with refused, interleaved(buy, before="^UPDATE .?inventory_stockitem"):
            buy()
        if error:
            ledger.assert_law(a=(0, 1))
        else:
            figures = ledger.figures()["a"]
            assert (figures.received, figures.on_hand, figures.sold) == (1, -1, 2)
            assert (figures.drift, figures.oversold, figures.conserved) == (0, 1, False)


def test_give_back_adds_units(three: None) -> None:
    stock.deliver("b", 1)
    stock.take("a", 3)
    with CaptureQueriesContext(connection) as captured:
        stock.give_back([("d", 1), ("c", 1), ("a", 1), ("a", 1)])
    updates = [re.search(r"sku\" = '(.)'", query["sql"]) for query in captured]
    assert [found[1] for found in updates if found] == ["a", "a", "c", "d"], "in the order that prevents deadlocks"
    assert row() == (3, 2, 3)
    assert list(StockItem.objects.values_list("sku", "on_hand")) == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("quantity", [0, -1])
def test_a_delivery_needs_a_unit(three: None, quantity: int) -> None:
    with pytest.raises(ValueError, match="at least one unit"):
        stock.deliver("a", quantity)
    assert row() == (3, 3, 0)
    stock.deliver("a", 3)
    assert row() == (6, 6, 1)


@pytest.mark.django_db(transaction=True)
def test_concurrent_deliveries_of_a_new_sku() -> None:
    assert count_by_kind(at_once(*[lambda: stock.deliver("a", 2)] * 8)) == {"None": 8}
    assert row()[:2] == (16, 16)
