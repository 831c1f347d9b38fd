"""Stock that a sale has split up is found by the next sale, by a late payment and by a correction."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction
from django.utils import timezone
from redis import Redis

from inventory import sold_out, stock
from inventory.errors import NotThatMany, SoldOut, StockElsewhere, StockNotLoaded, TryAgain
from inventory.models import StockItem, StockMovement, StockSegment, StockUnit
from inventory.strategies import registry
from shop import conservation
from shop import reconcile as reconciling
from shop.models import Order, Payment, Sale, SaleItem
from shop.orders import payments
from shop.orders.customer_changes import cancel_order
from shop.orders.place import make_request, place_order
from shop.orders.queued import save_queued
from shop.orders.receipts import Placed
from shop.orders.saving import save
from shop.reconcile import reconcile
from shop.sales import lifecycle, offers
from tests.factories import SAVING, OnSale, at_once, begin, close_now, interleaved, new_customer, on_sale
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

SPLIT = ["segmented-lock", "unit-rows"]
OTHERS = ["guarded-update", "lua", "redis-lock", "group-commit", *SPLIT]
HOUR = timedelta(hours=1)


def buy(offer: OnSale, units: int = 1) -> Placed:
    return place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=units), key="k")


def buy_patiently(offer: OnSale, units: int = 1) -> Placed:
    """As one who is told that the stock is not loaded, and comes again."""
    try:
        return buy(offer, units)
    except StockNotLoaded:
        return buy(offer, units)


def pieces() -> tuple[int, str]:
    """Units of `a` that are not in its pool, and who has split it."""
    item = StockItem.objects.get(sku="a")
    return stock.on_hand("a") - item.on_hand, item.split_by


def assert_all_can_be_bought(offer: OnSale, units: int) -> None:
    for _ in range(units):
        buy_patiently(offer)
    with pytest.raises(SoldOut):
        buy(offer)
    assert stock.on_hand("a") == 0
    assert all(figures.conserved for figures in conservation.figures())


def late_order(first: str, second: str, units: int) -> tuple[Callable[[], object], OnSale]:
    """An order that comes to its stock when its sale is over, and the next sale, which is open."""
    offer = on_sale({"a": 10}, strategy=first)
    request = make_request(offers.read(offer.sale), customer=new_customer(), quantities=offer.cart(a=units), key="late")
    Sale.objects.update(closes_at=timezone.now())
    return partial(registry.get(first).place, request, save), on_sale({"a": 0}, strategy=second)


# The next sale


@pytest.mark.parametrize("second", OTHERS)
@pytest.mark.parametrize("first", SPLIT)
def test_an_order_that_comes_late_does_not_split_the_stock_of_the_next_sale(first: str, second: str) -> None:
    place, after = late_order(first, second, 3)
    if (first, second) == ("unit-rows", "segmented-lock"):
        # To gather the segments it would have to wait for them with the stock rows of its whole cart in hand.
        with pytest.raises(StockElsewhere, match="a is split up for another sale"):
            place()
    else:
        place()
    assert pieces()[1] == (second if second in SPLIT else "")
    assert_all_can_be_bought(after, stock.on_hand("a"))


@pytest.mark.parametrize("second", SPLIT)
@pytest.mark.parametrize("first", [name for name in SAVING if name not in SPLIT])
def test_an_order_that_comes_late_is_not_told_sold_out_when_the_next_sale_has_split_the_stock(
    first: str, second: str
) -> None:
    place, after = late_order(first, second, 3)
    with pytest.raises(TryAgain):
        place()
    assert pieces() == (10, second)
    assert_all_can_be_bought(after, 10)


@pytest.mark.parametrize("name", ["lua", "segmented-redis", "lua-queue"])
def test_what_redis_admits_of_stock_that_is_split_for_another_sale_is_gathered_by_the_next_buyers(name: str) -> None:
    """No way to this is known, but through a table that somebody has edited."""
    offer = on_sale({"a": 4}, strategy=name)
    StockItem.objects.update(on_hand=1, split_by="unit-rows")
    StockUnit.objects.bulk_create([StockUnit(item_id="a") for _ in range(3)])
    for _ in range(8):
        with suppress(TryAgain, SoldOut):
            buy(offer)
        save_queued()
        sold_out.forget()  # as a moment later
    assert Order.objects.filter(state=Order.State.PENDING).count() == 4
    assert all(figures.conserved for figures in conservation.figures())


@pytest.mark.parametrize("name", ["guarded-update", "advisory-lock", "redis-lock", "optimistic"])
def test_who_finds_too_little_and_then_enough_is_told_to_ask_again(name: str) -> None:
    """Units come back between the write or the look that found too little and the look at what is left."""
    offer = on_sale({"a": 1}, strategy=name)
    order = buy(offer).order.pk
    customer = Order.objects.get().customer_id
    again = partial(cancel_order, order, customer=customer)
    with (
        interleaved(again, before='SUM.*"inventory_stocksegment"'),
        pytest.raises(StockElsewhere, match="came back"),
    ):
        buy(offer)
    buy(offer)


@pytest.mark.parametrize("first", SPLIT)
def test_without_knowing_whose_the_stock_is_it_splits_it_and_the_next_sale_does_not_find_it(first: str) -> None:
    """The negative control."""
    place, after = late_order(first, "guarded-update", 1)
    StockItem.objects.update(split_by=first)
    place()
    with pytest.raises(StockElsewhere, match="a is split up for another sale"):
        buy(after)


@pytest.mark.parametrize("second", OTHERS)
@pytest.mark.parametrize("first", SPLIT)
def test_a_sale_that_was_preheated_before_another_one_was_put_in_front_of_it_is_preheated_again(
    redis: Redis, first: str, second: str
) -> None:
    after = on_sale({"a": 10}, strategy=second, opens=2 * HOUR, closes=3 * HOUR)
    lifecycle.preheat(after.sale)
    before = on_sale({"a": 0}, strategy=first)
    buy(before)
    assert pieces()[1] == first
    assert not offers.read(after.sale).preheated

    close_now(before)
    lifecycle.tend()
    Sale.objects.filter(pk=after.sale).update(opens_at=timezone.now())
    offers._remembered.clear()

    assert_all_can_be_bought(after, 9)


def add(offer: OnSale, to: OnSale) -> OnSale:
    """Offer what is in one sale in another one too, and preheat that, as the admin does."""
    for item in SaleItem.objects.filter(sale=offer.sale):
        SaleItem.objects.create(sale_id=to.sale, product=item.product, price=item.price)
    offers._remembered.clear()
    with suppress(lifecycle.NotNow):
        lifecycle.preheat(to.sale)
    return OnSale(to.sale, {**to.products, **offer.products})


@pytest.mark.parametrize("second", SPLIT)
@pytest.mark.parametrize("first", OTHERS)
def test_a_product_that_is_added_to_a_sale_that_is_to_come_is_still_sold_by_the_one_that_is_open(
    first: str, second: str
) -> None:
    before = on_sale({"a": 4}, strategy=first)
    after = on_sale({"b": 1}, strategy=second, opens=2 * HOUR, closes=3 * HOUR)
    lifecycle.preheat(after.sale)
    after = add(before, after)

    buy(before)
    assert pieces()[1] == (first if first in SPLIT else "")
    close_now(before)
    Sale.objects.filter(pk=after.sale).update(opens_at=timezone.now())
    lifecycle.tend()
    offers._remembered.clear()

    assert pieces() == (3, second)
    assert_all_can_be_bought(after, 3)


@pytest.mark.parametrize("second", OTHERS)
@pytest.mark.parametrize("first", SPLIT)
def test_a_product_that_is_added_to_the_open_sale_is_handed_on_to_the_one_that_is_to_come(
    first: str, second: str
) -> None:
    after = on_sale({"a": 4}, strategy=second, opens=2 * HOUR, closes=3 * HOUR)
    lifecycle.preheat(after.sale)
    before = add(after, on_sale({"b": 1}, strategy=first))

    buy(before)
    assert pieces()[1] == first
    close_now(before)
    Sale.objects.filter(pk=after.sale).update(opens_at=timezone.now())
    lifecycle.tend()
    offers._remembered.clear()

    assert pieces()[1] == (second if second in SPLIT else "")
    assert_all_can_be_bought(after, 3)


def test_of_two_sales_of_a_sku_that_are_open_the_one_that_opened_first_sells_it() -> None:
    """The admin lets nobody make two such."""
    offer = on_sale({"a": 4}, strategy="lua")
    later = add(offer, on_sale({"b": 1}, strategy="unit-rows"))
    assert reconciling.sellers()["a"] == "lua"
    assert pieces() == (0, "")
    buy(offer)
    lifecycle.preheat(offer.sale)
    assert offers.read(later.sale).preheated, "it sells its other product"
    assert_all_can_be_bought(offer, 3)


def test_a_sale_is_not_preheated_while_another_one_of_the_sku_comes_before_it() -> None:
    later = on_sale({"a": 1}, opens=2 * HOUR, closes=3 * HOUR)
    sooner = on_sale({"a": 0}, opens=HOUR, closes=2 * HOUR)
    with pytest.raises(lifecycle.NotNow, match="selling the same until"):
        lifecycle.preheat(later.sale)
    lifecycle.preheat(sooner.sale)
    assert [offers.read(each.sale).preheated for each in (sooner, later)] == [True, False]
    close_now(sooner)
    lifecycle.preheat(later.sale)
    assert offers.read(later.sale).preheated


@pytest.mark.parametrize("second", OTHERS)
@pytest.mark.parametrize("first", SPLIT)
def test_reconciling_gathers_what_another_strategy_than_the_sellers_has_split(first: str, second: str) -> None:
    """The product was moved from one open sale to another."""
    before, after = on_sale({"a": 10}, strategy=first), on_sale({"b": 1}, strategy=second)
    buy(before)
    SaleItem.objects.filter(sale=before.sale).update(sale=after.sale)
    offers._remembered.clear()
    after = OnSale(after.sale, {**before.products, **after.products})

    repaired = [(repair.what, repair.name) for repair in reconcile()]

    split_for_another = ("stock that was split for another strategy than the one that sells it", "a")
    assert repaired == ([] if first == second else [split_for_another])
    assert reconcile() == []
    assert_all_can_be_bought(after, 9)


@pytest.mark.parametrize("second", SPLIT)
def test_reconciling_leaves_the_pieces_of_a_sale_that_is_preheated_while_it_looks(second: str) -> None:
    before = on_sale({"a": 10})
    after = on_sale({"a": 0}, strategy=second, opens=HOUR, closes=2 * HOUR)

    def hand_over() -> None:
        Sale.objects.filter(pk=before.sale).update(closes_at=timezone.now())
        Sale.objects.filter(pk=after.sale).update(opens_at=timezone.now())
        lifecycle.preheat(after.sale)

    with interleaved(hand_over, before="^SELECT [^F]*split_by"):
        reconcile()
    assert pieces() == (10, second)


def test_reconciling_leaves_a_running_sale_its_pieces() -> None:
    for name in SPLIT:
        on_sale({name: 10}, strategy=name)
    assert reconcile() == []
    assert set(StockItem.objects.values_list("sku", "split_by", "on_hand")) == {(name, name, 0) for name in SPLIT}


@pytest.mark.parametrize("name", SPLIT)
def test_a_sale_that_is_opened_again_after_its_end_is_loaded_and_unloaded_again(name: str) -> None:
    offer = on_sale({"a": 10}, strategy=name)
    lifecycle.close(offer.sale)
    assert pieces() == (0, "")
    Sale.objects.update(closes_at=timezone.now() + HOUR)
    offers._remembered.clear()
    with pytest.raises(StockNotLoaded):
        buy(offer)
    buy(offer)
    assert pieces() == (9, name)
    close_now(offer)
    lifecycle.tend()
    assert pieces() == (0, "")


def test_tending_loads_a_sale_that_is_opened_again() -> None:
    offer = on_sale({"a": 10}, strategy="unit-rows")
    lifecycle.close(offer.sale)
    Sale.objects.update(closes_at=timezone.now() + HOUR)
    lifecycle.tend()
    assert pieces() == (10, "unit-rows")


# Late payments and corrections


@pytest.mark.parametrize("name", SPLIT)
def test_a_late_payment_finds_units_that_are_split_up(name: str) -> None:
    offer = on_sale({"a": 10}, strategy=name)
    order = Order.objects.get(pk=buy(offer, 3).order.pk)
    cancel_order(order.pk, customer=order.customer_id)
    lifecycle.preheat(offer.sale)
    assert pieces()[0] == 10

    payment = payments.receive("late", order=order.pk, amount=order.total).payment

    assert payment.outcome == Payment.Outcome.PAID
    assert Order.objects.get().state == Order.State.PAID
    assert_all_can_be_bought(offer, 7)
    assert pieces()[1] == name


@pytest.mark.parametrize("name", SPLIT)
def test_a_correction_finds_units_that_are_split_up_and_takes_no_more_than_there_are(name: str) -> None:
    offer = on_sale({"a": 10}, strategy=name)
    stock.move("a", StockMovement.Kind.CORRECTED, -4, why="broken")
    assert stock.on_hand("a") == 6
    with pytest.raises(NotThatMany, match="7 to be taken away, 6 on hand"):
        stock.move("a", StockMovement.Kind.CORRECTED, -7, why="broken")
    assert_all_can_be_bought(offer, 6)


def test_a_late_payment_that_waits_for_one_sku_has_no_segment_of_another() -> None:
    """A cart that gathers has items before segments: with a segment before an item, each would wait for the other."""
    offer = on_sale({"a": 10, "c": 10}, strategy="segmented-lock")
    cart = {"customer": new_customer(), "quantities": offer.cart(a=1, c=1), "key": "k"}
    order = Order.objects.get(pk=place_order(sale=offer.sale, **cart).order.pk)
    cancel_order(order.pk, customer=order.customer_id)
    lifecycle.preheat(offer.sale)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            stock.lock(["c"])
            paying = begin(pool, partial(payments.receive, "late", order=order.pk, amount=order.total))
            assert not paying.done()
            # As this cart would now: an error if the payment had them.
            segments = list(StockSegment.objects.select_for_update(nowait=True).filter(item="a").order_by("number"))
            assert sum(segment.on_hand for segment in segments) == 10
        assert paying.result(PATIENCE).payment.outcome == Payment.Outcome.PAID


@pytest.mark.parametrize("name", SPLIT)
def test_buyers_late_payments_and_corrections_wait_for_each_other_in_no_circle(name: str) -> None:
    offer = on_sale({"a": 60, "b": 60, "c": 60}, strategy=name)

    def place(**cart: int) -> Order:
        placed = place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(**cart), key="k")
        return Order.objects.get(pk=placed.order.pk)

    late = [place(**cart) for cart in [{"a": 2, "b": 1}, {"b": 2, "c": 1}, {"a": 1, "c": 2}] * 3]
    for order in late:
        cancel_order(order.pk, customer=order.customer_id)
    lifecycle.preheat(offer.sale)

    def correct(sku: str) -> None:
        stock.move(sku, StockMovement.Kind.CORRECTED, -1, why="broken")

    answers = at_once(
        *[partial(payments.receive, str(order), order=order.pk, amount=order.total) for order in late],
        *[partial(place, **cart) for cart in [{"a": 1, "b": 1, "c": 1}, {"b": 20}, {"a": 1, "c": 18}] * 2],
        *[partial(correct, sku) for sku in "cba"],
        *[partial(lifecycle.preheat, offer.sale)] * 2,
    )

    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert set(Payment.objects.values_list("outcome", flat=True)) == {Payment.Outcome.PAID}
    assert {row.sku: row.on_hand for row in conservation.figures()} == {
        "a": 60 - 9 - 4 - 1,
        "b": 60 - 9 - 42 - 1,
        "c": 60 - 9 - 38 - 1,
    }
    assert all(row.conserved for row in conservation.figures())
