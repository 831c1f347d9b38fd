"""The first two rungs break when every buyer reads before any writes. The sound strategies are held against the same
schedule in tests/inventory: here are the negative controls, with exact figures. All rungs are in test_stock_rungs.py.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from inventory.audit import Figures
from inventory.errors import SoldOut, UnknownStrategy
from inventory.requests import Placement
from inventory.strategies import registry
from inventory.strategies.registry import NAMES
from lab import ledger
from lab.ladder.stock import RUNGS
from lab.models import RungOrder, RungStock
from shop.models import Sale
from tests.factories import interleaved, meeting_before_the_write, new_request, tally

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

BUYERS = 4

# What four buyers make of one unit: on hand, sold.
BROKEN = {"compute-and-overwrite": (0, 4), "subtract-in-sql": (-3, 4)}

# Those that go wrong with one buyer after the other.
ALONE = {"refusal-swallowed", "segmented-keys", "lua-off-by-one"}
TOGETHER = [slug for slug in RUNGS if slug not in ALONE]


@pytest.mark.parametrize("rung", BROKEN)
def test_when_every_buyer_has_read_before_any_writes_the_last_unit_is_sold_to_all_of_them(rung: str) -> None:
    ledger.stock_up("last", 1)
    buyers = [partial(RUNGS[rung].place, new_request(("last", 1)), ledger.save) for _ in range(BUYERS)]
    assert tally(meeting_before_the_write(*buyers)) == {"COMMITTED": BUYERS}
    on_hand, sold = BROKEN[rung]
    figures = ledger.figures("last")
    assert figures == Figures("last", 1, on_hand, sold)
    assert (figures.conserved, figures.oversold) == (False, BUYERS - 1)


@pytest.mark.parametrize(
    ("rung", "on_hand", "drift"),
    [("compute-and-overwrite", 9, -1), ("subtract-in-sql", 8, 0)],
)
def test_far_from_the_last_unit_only_the_overwrite_loses_an_update(rung: str, on_hand: int, drift: int) -> None:
    """What the second rung fixes: no update is lost any more."""
    ledger.stock_up("a", 10)

    def buy() -> None:
        RUNGS[rung].place(new_request(("a", 1)), ledger.save)

    with interleaved(buy, before="^UPDATE .lab_rungstock"):
        buy()
    figures = ledger.figures("a")
    assert (figures.on_hand, figures.sold, figures.drift) == (on_hand, 2, drift)


@pytest.mark.parametrize("rung", TOGETHER)
def test_one_buyer_after_the_other_does_not_break_it(rung: str) -> None:
    """The flaw shows only under contention, after a crash, or with carts of several units: that is why it ships."""
    ledger.stock_up("a", 2)
    for _ in range(2):
        assert RUNGS[rung].place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    with pytest.raises(SoldOut, match="a: 1 wanted, 0 left"):
        RUNGS[rung].place(new_request(("a", 1)), ledger.save)
    assert ledger.figures("a") == Figures("a", 2, 0, 2)
    assert ledger.figures("a").conserved


@pytest.mark.parametrize("rung", TOGETHER)
def test_a_refused_cart_leaves_nothing(rung: str) -> None:
    ledger.stock_up("a", 2)
    ledger.stock_up("b", 1)
    with pytest.raises(SoldOut, match="b: 2 wanted, 1 left"):
        RUNGS[rung].place(new_request(("a", 1), ("b", 2)), ledger.save)
    assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 2, 2, 0), Figures("b", 1, 1, 0)]


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_refuses_to_run_inside_a_transaction_like_any_strategy(rung: str) -> None:
    ledger.stock_up("a", 1)
    with transaction.atomic(), pytest.raises(RuntimeError, match=rung):
        RUNGS[rung].place(new_request(("a", 1)), ledger.save)
    assert ledger.figures("a") == Figures("a", 1, 1, 0)


# The ledger


def test_the_ledger_writes_an_order_of_many_lines_and_refuses_nothing() -> None:
    request = new_request(("a", 1), ("b", 2))
    assert ledger.save([request, request]) == {}
    assert sorted(RungOrder.objects.values_list("order", "sku", "quantity")) == sorted(
        [(request.id, "a", 1), (request.id, "b", 2)] * 2
    )
    assert set(RungOrder.objects.values_list("customer", "key")) == {(request.customer, request.key)}
    assert ledger.repeated("a") == 1


def test_an_order_is_cancelled_once_and_its_units_come_back() -> None:
    for sku in "ab":
        ledger.stock_up(sku, 5)
    request, other = new_request(("a", 1), ("b", 2)), new_request(("a", 1))
    for order in (request, other):
        RUNGS["duplicate-click"].place(order, ledger.save)
    assert [ledger.cancel(request.id) for _ in range(2)] == [True, False]
    assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 5, 4, 1), Figures("b", 5, 5, 0)]


def test_units_that_are_counted_come_back_by_being_counted_no_more() -> None:
    ledger.stock_up("a", 5)
    request = new_request(("a", 2))
    RUNGS["lock-under-the-wrong-isolation"].place(request, ledger.save)
    assert ledger.figures("a") == Figures("a", 5, 3, 2)
    ledger.cancel(request.id)
    assert ledger.figures("a") == Figures("a", 5, 5, 0)


def test_two_orders_of_one_customer_repeat_nothing_unless_they_have_one_key() -> None:
    for customer, key in ((1, "x"), (1, "y"), (2, "x"), (2, "x")):
        ledger.save([new_request(("a", 1), customer=customer, key=key)])
    assert (ledger.repeated("a"), ledger.repeated("b")) == (1, 0)


def test_stocking_up_starts_a_sku_over_and_leaves_the_others() -> None:
    ledger.stock_up("a", 2)
    ledger.stock_up("b", 2)
    for sku in "ab":
        ledger.save([new_request((sku, 1))])
    ledger.stock_up("a", 5)
    assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 5, 5, 0), Figures("b", 2, 2, 1)]
    assert RungOrder.objects.count() == 1
    copies = {sku: {rung.copy(sku) for rung in RUNGS.values()} for sku in "ab"}
    assert copies == {"a": {None, 5}, "b": {None, 2}}


def test_figures_of_a_sku_that_was_never_stocked_are_an_error() -> None:
    with pytest.raises(RungStock.DoesNotExist):
        ledger.figures("unknown")


# The wall


def test_a_rung_is_no_strategy_of_the_shop() -> None:
    assert set(RUNGS) & set(NAMES) == set()
    now = timezone.now()
    for name in RUNGS:
        with pytest.raises(UnknownStrategy):
            registry.get(name)
        with pytest.raises(ValidationError, match=name):
            Sale(name="x", opens_at=now, closes_at=now + timedelta(hours=1), strategy=name).full_clean()
