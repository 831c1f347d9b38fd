"""The next sale, late payments and corrections use stock that an earlier sale has split into segments or unit rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction
from django.utils import timezone

from inventory import sold_out, stock
from inventory.errors import CorrectionTooLarge, SoldOut, StockElsewhere, StockNotLoaded, TryAgain
from inventory.models import StockItem, StockMovement, StockSegment, StockUnit
from inventory.strategies import registry
from shop import conservation
from shop import reconcile as reconciling
from shop.models import Order, Payment, Sale, SaleItem
from shop.orders import payments
from shop.orders.customer_changes import cancel_order
from shop.orders.place import make_request
from shop.orders.queued import save_queued
from shop.orders.receipts import Placed
from shop.orders.saving import save
from shop.reconcile import reconcile
from shop.sales import lifecycle, offers
from shop.sales.preheat import CannotPreheat, preheat_sale
from tests.factories import (
    SAVING,
    OnSale,
    at_once,
    begin,
    close_now,
    fast_and_slow,
    interleaved,
    new_customer,
    on_sale,
    slow,
)
from tests.shop import conftest
from tests.shop.conftest import assert_conserved
from tests.waiting import WAIT_TIMEOUT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

SPLIT = ["segmented-lock", "unit-rows"]
OPPOSITE = ("unit-rows", "segmented-lock")
PAIRS = [
    *[("segmented-lock", "unit-rows"), ("unit-rows", "lua")],
    *[
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in (("unit-rows", "unit-rows"), ("segmented-lock", "guarded-update"), OPPOSITE)
    ],
]
"""The strategies of two sales. The first splits the stock. The second splits it, has a counter, or does neither."""
HOUR = timedelta(hours=1)


def buy(offer: OnSale, units: int = 1) -> Placed:
    return conftest.buy(offer, a=units)


def split() -> tuple[int, str]:
    """Return the number of split units of `a`, and the strategy that has split them."""
    item = StockItem.objects.get(sku="a")
    return stock.on_hand("a") - item.on_hand, item.split_by


def assert_all_can_be_bought(offer: OnSale, units: int) -> None:
    with suppress(StockNotLoaded):  # The first order may load the stock.
        buy(offer)
        units -= 1
    for _ in range(units):
        buy(offer)
    with pytest.raises(SoldOut):
        buy(offer)
    assert stock.on_hand("a") == 0
    assert_conserved()


def late_order(first: str, second: str, units: int) -> tuple[Callable[[], object], OnSale]:
    """Return a function that places a late order of an ended sale, and return the next sale, which is open."""
    offer = on_sale({"a": 10}, strategy=first)
    cart = {"quantities": offer.cart(a=units), "expected_prices": offer.prices}
    request = make_request(offers.read(offer.sale), customer=new_customer(), key="late", **cart)
    Sale.objects.update(closes_at=timezone.now())
    return partial(registry.get(first).place, request, save), on_sale({"a": 0}, strategy=second)


@pytest.mark.parametrize(("first", "second"), [*PAIRS[:-1], OPPOSITE])
def test_a_late_order_does_not_split_the_stock_of_the_next_sale(first: str, second: str) -> None:
    place, after = late_order(first, second, 3)
    if (first, second) == OPPOSITE:
        # The order does not join the segments: it would wait for them while it locks the cart's stock rows.
        with pytest.raises(StockElsewhere, match="a is split for another sale"):
            place()
    else:
        place()
    assert split()[1] == (second if second in SPLIT else "")
    assert_all_can_be_bought(after, stock.on_hand("a"))


@pytest.mark.parametrize("second", ["segmented-lock", *slow("unit-rows")])
@pytest.mark.parametrize("first", fast_and_slow(name for name in SAVING if name not in SPLIT))
def test_a_late_order_is_not_told_sold_out_after_a_split(first: str, second: str) -> None:
    place, after = late_order(first, second, 3)
    with pytest.raises(TryAgain):
        place()
    assert split() == (10, second)
    assert_all_can_be_bought(after, 10)


@pytest.mark.parametrize("name", ["lua", "segmented-redis", "lua-queue"])
def test_units_split_for_another_sale_are_joined_by_orders(name: str) -> None:
    offer = on_sale({"a": 4}, strategy=name)
    StockItem.objects.update(on_hand=1, split_by="unit-rows")
    StockUnit.objects.bulk_create([StockUnit(item_id="a") for _ in range(3)])
    for _ in range(8):
        with suppress(TryAgain, SoldOut):
            buy(offer)
        save_queued()
        sold_out.forget()
    assert Order.objects.filter(state=Order.State.PENDING).count() == 4
    assert_conserved()


@pytest.mark.parametrize("name", ["guarded-update", "optimistic"])
def test_units_that_come_back_meanwhile_mean_try_again(name: str) -> None:
    """If units are returned before the shop reads how many are left, the answer is to try again, not "sold out"."""
    offer = on_sale({"a": 1}, strategy=name)
    order = buy(offer).order.pk
    cancel = partial(cancel_order, order, customer=Order.objects.get().customer_id)
    with interleaved(cancel, before='SUM.*"inventory_stocksegment"'), pytest.raises(StockElsewhere, match="returned"):
        buy(offer)
    buy(offer)


@pytest.mark.parametrize("first", SPLIT)
def test_without_the_split_mark_a_late_order_splits_the_stock(first: str) -> None:
    """Negative control: if `split_by` still names the first strategy, a late order splits the stock again."""
    place, after = late_order(first, "guarded-update", 1)
    StockItem.objects.update(split_by=first)
    place()
    with pytest.raises(StockElsewhere, match="a is split for another sale"):
        buy(after)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_sale_preheated_too_early_is_preheated_again(first: str, second: str) -> None:
    after = coming({"a": 10}, second)
    before = on_sale({"a": 0}, strategy=first)
    buy(before)
    assert split()[1] == first
    assert not offers.read(after.sale).preheated

    close_now(before)
    lifecycle.advance()
    Sale.objects.filter(pk=after.sale).update(opens_at=timezone.now())
    offers.cache.clear()

    assert_all_can_be_bought(after, 9)


def add(offer: OnSale, to: OnSale) -> OnSale:
    """Copy a sale's items into another sale, and try to preheat the other sale, as the admin does."""
    for item in SaleItem.objects.filter(sale=offer.sale):
        SaleItem.objects.create(sale_id=to.sale, product=item.product, price=item.price)
    offers.cache.clear()
    with suppress(CannotPreheat):
        preheat_sale(to.sale)
    return OnSale(to.sale, {**to.products, **offer.products})


def end(before: OnSale, after: OnSale) -> None:
    """End a sale, and open the next one."""
    close_now(before)
    Sale.objects.filter(pk=after.sale).update(opens_at=timezone.now())
    lifecycle.advance()
    offers.cache.clear()


def coming(units: dict[str, int], strategy: str) -> OnSale:
    """Create a sale that opens in two hours, and preheat it."""
    offer = on_sale(units, strategy=strategy, opens=2 * HOUR, closes=3 * HOUR)
    preheat_sale(offer.sale)
    return offer


@pytest.mark.parametrize(("second", "first"), PAIRS)
def test_a_product_added_to_a_coming_sale_is_sold_by_the_open_one(first: str, second: str) -> None:
    before = on_sale({"a": 4}, strategy=first)
    after = add(before, coming({"b": 1}, second))

    buy(before)
    assert split()[1] == (first if first in SPLIT else "")
    end(before, after)

    assert split() == (3, second)
    assert_all_can_be_bought(after, 3)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_product_added_to_the_open_sale_goes_to_the_coming_one_later(first: str, second: str) -> None:
    after = coming({"a": 4}, second)
    before = add(after, on_sale({"b": 1}, strategy=first))

    buy(before)
    assert split()[1] == first
    end(before, after)

    assert split()[1] == (second if second in SPLIT else "")
    assert_all_can_be_bought(after, 3)


def test_of_two_open_sales_of_a_sku_the_earlier_one_sells_it() -> None:
    offer = on_sale({"a": 4}, strategy="lua")
    later = add(offer, on_sale({"b": 1}, strategy="unit-rows"))
    assert reconciling.sellers()["a"] == "lua"
    assert split() == (0, "")
    buy(offer)
    preheat_sale(offer.sale)
    assert offers.read(later.sale).preheated, "it sells its other product"
    assert_all_can_be_bought(offer, 3)


def test_a_sale_is_not_preheated_before_an_earlier_one_is_over() -> None:
    later = on_sale({"a": 1}, opens=2 * HOUR, closes=3 * HOUR)
    sooner = on_sale({"a": 0}, opens=HOUR, closes=2 * HOUR)
    with pytest.raises(CannotPreheat, match="sells the same skus until"):
        preheat_sale(later.sale)
    preheat_sale(sooner.sale)
    assert [offers.read(each.sale).preheated for each in (sooner, later)] == [True, False]
    close_now(sooner)
    preheat_sale(later.sale)
    assert offers.read(later.sale).preheated


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_reconciling_joins_stock_split_by_another_strategy(first: str, second: str) -> None:
    before, after = on_sale({"a": 10}, strategy=first), on_sale({"b": 1}, strategy=second)
    buy(before)
    SaleItem.objects.filter(sale=before.sale).update(sale=after.sale)
    offers.cache.clear()
    after = OnSale(after.sale, {**before.products, **after.products})

    repaired = [(repair.what, repair.name) for repair in reconcile()]

    split_for_another = ("stock split for a strategy that does not sell it", "a")
    assert repaired == ([] if first == second else [split_for_another])
    assert reconcile() == []
    assert_all_can_be_bought(after, 9)


@pytest.mark.parametrize("second", SPLIT)
def test_reconciling_leaves_stock_that_is_preheated_meanwhile(second: str) -> None:
    before = on_sale({"a": 10})
    after = on_sale({"a": 0}, strategy=second, opens=HOUR, closes=2 * HOUR)

    def hand_over() -> None:
        Sale.objects.filter(pk=before.sale).update(closes_at=timezone.now())
        Sale.objects.filter(pk=after.sale).update(opens_at=timezone.now())
        preheat_sale(after.sale)

    with interleaved(hand_over, before="^SELECT [^F]*split_by"):
        reconcile()
    assert split() == (10, second)


def test_reconciling_leaves_the_stock_of_an_open_sale() -> None:
    for name in SPLIT:
        on_sale({name: 10}, strategy=name)
    assert reconcile() == []
    assert set(StockItem.objects.values_list("sku", "split_by", "on_hand")) == {(name, name, 0) for name in SPLIT}


@pytest.mark.parametrize("advanced", [True, False], ids=["by advancing", "by an order"])
@pytest.mark.parametrize("name", SPLIT)
def test_a_reopened_sale_is_loaded_and_unloaded_again(name: str, advanced: bool) -> None:
    offer = on_sale({"a": 10}, strategy=name)
    lifecycle.close(offer.sale)
    assert split() == (0, "")
    Sale.objects.update(closes_at=timezone.now() + HOUR)
    offers.cache.clear()
    if advanced:
        lifecycle.advance()
    else:
        with pytest.raises(StockNotLoaded):
            buy(offer)
    buy(offer)
    assert split() == (9, name)
    close_now(offer)
    lifecycle.advance()
    assert split() == (0, "")


@pytest.mark.parametrize("name", SPLIT)
def test_a_correction_finds_split_units(name: str) -> None:
    offer = on_sale({"a": 10}, strategy=name)
    stock.move("a", StockMovement.Kind.CORRECTED, -4, why="broken")
    assert stock.on_hand("a") == 6
    with pytest.raises(CorrectionTooLarge, match="cannot remove 7 units, only 6 are on hand"):
        stock.move("a", StockMovement.Kind.CORRECTED, -7, why="broken")
    assert_all_can_be_bought(offer, 6)


def test_a_late_payment_locks_no_segment_before_its_skus() -> None:
    """A late payment locks its stock rows before segments, as carts do. Another sequence could deadlock."""
    offer = on_sale({"a": 10, "c": 10}, strategy="segmented-lock")
    order = Order.objects.get(pk=conftest.buy(offer, a=1, c=1).order.pk)
    cancel_order(order.pk, customer=order.customer_id)
    preheat_sale(offer.sale)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            stock.lock(["c"])
            paying = begin(pool, partial(payments.receive_payment, "late", order=order.pk, amount=order.total))
            assert not paying.done()
            # NOWAIT fails if the payment holds the segments.
            segments = list(StockSegment.objects.select_for_update(nowait=True).filter(item="a").order_by("number"))
            assert sum(segment.on_hand for segment in segments) == 10
        assert paying.result(WAIT_TIMEOUT).payment.outcome == Payment.Outcome.PAID


@pytest.mark.parametrize("name", SPLIT)
def test_orders_late_payments_and_corrections_do_not_deadlock(name: str) -> None:
    offer = on_sale({"a": 60, "b": 60, "c": 60}, strategy=name)
    place = partial(conftest.buy, offer)
    carts = [{"a": 2, "b": 1}, {"b": 2, "c": 1}, {"a": 1, "c": 2}] * 3
    late = [Order.objects.get(pk=place(**cart).order.pk) for cart in carts]
    for order in late:
        cancel_order(order.pk, customer=order.customer_id)
    preheat_sale(offer.sale)

    answers = at_once(
        *[partial(payments.receive_payment, str(order), order=order.pk, amount=order.total) for order in late],
        *[partial(place, **cart) for cart in [{"a": 1, "b": 1, "c": 1}, {"b": 20}, {"a": 1, "c": 18}] * 2],
        *[partial(stock.move, sku, StockMovement.Kind.CORRECTED, -1, why="broken") for sku in "cba"],
        *[partial(preheat_sale, offer.sale)] * 2,
    )

    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert set(Payment.objects.values_list("outcome", flat=True)) == {Payment.Outcome.PAID}
    left = {"a": 60 - 9 - 4 - 1, "b": 60 - 9 - 42 - 1, "c": 60 - 9 - 38 - 1}
    assert {row.sku: row.on_hand for row in conservation.figures()} == left
    assert_conserved()
