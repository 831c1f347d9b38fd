"""An unpaid order expires once, and its units are returned once."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import transaction

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from shop import conservation
from shop.models import Allowance, Order
from shop.orders.customer_changes import pay_order
from shop.orders.expiry import expire_unpaid
from shop.orders.saving import return_units
from shop.runtime.tasks import expire_unpaid_orders
from tests.factories import SAVING, OnSale, close_now, fast_and_slow, interleaved, new_customer, on_sale, orders_in
from tests.shop.conftest import assert_conserved, buy, make_due, on_hand, state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def place(offer: OnSale, customer: int, **units: int) -> UUID:
    return buy(offer, customer, **(units or {"a": 1})).order.pk


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_unpaid_orders_expire_once_and_paid_ones_stay(customer: int, name: str) -> None:
    offer = on_sale({"a": 10, "b": 10}, strategy=name, limit=9)
    due, paid, fresh = (place(offer, customer, a=units, b=1) for units in (1, 2, 4))
    pay_order(paid, customer=customer)
    make_due(due, paid)
    counted = name == "lua"
    assert on_hand() == (3, 3 if counted else None)

    assert [expire_unpaid() for _ in range(3)] == [1, 0, 0]

    assert [state(order) for order in (due, paid, fresh)] == ["expired", "paid", "pending"]
    assert on_hand() == (4, 4 if counted else None)
    assert on_hand("b") == (8, 8 if counted else None)
    assert dict(Allowance.objects.values_list("sku", "taken")) == {"a": 6, "b": 2}
    assert registry.counters().reserved() == {}
    assert_conserved()


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_more_orders_than_a_batch_expire(batch: int) -> None:
    offer = on_sale({"a": 5}, strategy="lua", limit=1)
    for _ in range(5):
        place(offer, new_customer())
    make_due()
    assert expire_unpaid(batch=batch) == 5
    assert orders_in("expired") == 5
    assert on_hand() == (5, 5)
    assert set(Allowance.objects.values_list("taken", flat=True)) == {0}


def test_an_order_that_cannot_expire_does_not_stop_others(customer: int, caplog: pytest.LogCaptureFixture) -> None:
    offer = on_sale({"a": 5, "b": 5})
    stuck = place(offer, customer, a=3)
    place(offer, customer, b=1)
    StockItem.objects.filter(sku="a").update(received=2)  # Make the return of `a` break `on_hand <= received`.
    make_due()
    assert expire_unpaid() == 1
    assert state(stuck) == "pending"
    assert StockItem.objects.get(sku="b").on_hand == 5
    assert f"Expiring order {stuck}, whose units stay sold, fails" in caplog.text


def test_two_workers_expire_each_order_once(customer: int) -> None:
    offer = on_sale({"a": 6}, strategy="lua", limit=6)
    for _ in range(6):
        place(offer, customer)
    make_due()
    counts: list[int] = []

    def second_worker() -> None:
        counts.append(expire_unpaid(batch=4))

    # The first worker locks four orders, so the second one finds the other two.
    with interleaved(second_worker, after="FOR UPDATE SKIP LOCKED"):
        counts.append(expire_unpaid(batch=4))

    assert counts == [2, 4]
    assert orders_in("expired") == 6
    assert on_hand() == (6, 6)
    assert Allowance.objects.get().taken == 0
    assert_conserved()


def test_without_the_row_lock_two_workers_return_units_twice(customer: int) -> None:
    """Negative control: two workers that read orders without row locks return the units twice."""
    offer = on_sale({"a": 6, "other": 1})
    stock.deliver("a", 1)
    place(offer, new_customer(), a=3)
    place(offer, customer, a=1)
    # Keep the constraints, a second guard, from stopping the flaw.
    Allowance.objects.update(taken=3)
    make_due()
    Order.objects.exclude(customer=customer).update(state="paid")

    def expire_without_locking() -> None:
        with transaction.atomic():
            orders = list(Order.objects.filter(state="pending").values_list("pk", flat=True))
            return_units(orders)
            Order.objects.filter(pk__in=orders).update(state="expired")

    with interleaved(expire_without_locking, after='^SELECT "shop_order"'):
        expire_without_locking()
    figures = next(row for row in conservation.figures(["a"]))
    assert (figures.received, figures.on_hand, figures.sold, figures.drift) == (7, 5, 3, -1)


def test_expiry_after_the_sale_makes_no_counter(customer: int) -> None:
    offer = on_sale({"a": 2}, strategy="lua")
    place(offer, customer)
    make_due()
    registry.counters().unload(["a"])
    assert expire_unpaid_orders() == 1
    assert on_hand() == (2, None)


def test_units_of_an_earlier_sale_are_sold_in_the_next_one(customer: int) -> None:
    earlier = on_sale({"a": 3}, strategy="guarded-update")
    place(earlier, customer, a=2)
    close_now(earlier)
    on_sale({"a": 0}, strategy="lua")
    assert on_hand() == (1, 1)
    make_due()
    assert expire_unpaid() == 1
    assert on_hand() == (3, 3)
