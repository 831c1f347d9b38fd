"""How orders end: when and by whom is written with the state and shown. An unpaid order expires once."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from shop import conservation
from shop.models import Allowance, Ending, Order
from shop.orders import states
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.ending import end_pending
from shop.orders.expiry import expire_unpaid
from shop.orders.payments import receive_payment
from shop.orders.queued import save_queued
from shop.orders.saving import return_units
from shop.runtime.tasks import expire_unpaid_orders
from tests.factories import SAVING, OnSale, close_now, fast_and_slow, interleaved, new_customer, on_sale, orders_in
from tests.shop.conftest import assert_conserved, buy, make_due, on_hand, raising, state
from tests.shop.test_admin import ORDERS, run_action
from tests.shop.test_admin_orders import exported
from tests.shop.test_order_pages import events, logged_in, shown

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def offer() -> OnSale:
    return on_sale({"a": 9})


@pytest.fixture
def order(offer: OnSale, customer: int) -> UUID:
    return buy(offer, customer, a=1).order.pk


def now() -> datetime:
    """Return the time of Postgres."""
    return Order.objects.annotate(now=Now()).values_list("now", flat=True)[0]


def expire(order: UUID) -> None:
    make_due(order)
    assert expire_unpaid() == 1


def customer_of(order: UUID) -> int:
    return int(Order.objects.values_list("customer", flat=True).get(pk=order))


def cancel(order: UUID) -> None:
    cancel_order(order, customer=customer_of(order))


def cancel_by_operator(order: UUID) -> None:
    end_pending([order], Order.State.CANCELLED, by=User.objects.create_user("operator").pk)


ENDS: dict[str, tuple[Callable[[UUID], None], str, str]] = {
    "customer": (cancel, "cancelled", "Cancelled by you"),
    "operator": (cancel_by_operator, "cancelled", "Cancelled by the shop"),
    "program": (expire, "expired", "Expired"),
}


@pytest.mark.parametrize("who", ENDS)
def test_a_row_and_the_page_say_when_and_by_whom(order: UUID, who: str) -> None:
    before = now()
    ENDS[who][0](order)
    _, ended, line = ENDS[who]
    row = Ending.objects.select_related("by").get()
    by = {"customer": customer_of(order), "operator": row.by_id, "program": None}[who]
    assert (row.order_id, row.state, row.by_id) == (order, ended, by)
    assert before < row.at < now()
    page = shown(logged_in(customer_of(order)), order)
    assert events(page) == ["Placed", "Saved", line]
    assert f'{line}</b> <time datetime="{row.at:%Y-%m-%dT%H:%M:%S}' in page
    # Negative control: without the row, the page shows no time. Orders that an earlier version ended have no row.
    Ending.objects.all().delete()
    page = shown(logged_in(customer_of(order)), order)
    assert events(page)[-1] == ended.capitalize()
    assert not re.search(r"(Cancelled|Expired)</b> <time", page)


@pytest.mark.parametrize("who", ENDS)
def test_an_order_does_not_end_without_its_row(order: UUID, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "record_endings", raising(ValueError("no row")))
    with pytest.raises(ValueError, match="no row"):
        ENDS[who][0](order)
    assert (state(order), on_hand()[0]) == ("pending", 8)
    assert_conserved()


def test_many_that_end_together_take_one_statement_more(offer: OnSale) -> None:
    orders = [buy(offer, a=1).order.pk for _ in range(4)]
    with CaptureQueriesContext(connection) as queries:
        assert len(end_pending(orders, Order.State.CANCELLED)) == 4
    assert len([each for each in queries if "shop_ending" in each["sql"]]) == 1
    assert Ending.objects.count() == 4


def test_a_repeated_cancellation_leaves_the_first_one(order: UUID) -> None:
    cancel_by_operator(order)
    before = Ending.objects.values().get()
    cancel(order)
    assert end_pending([order], Order.State.EXPIRED) == []
    assert Ending.objects.values().get() == before


def test_a_rejected_order_has_the_time_of_its_rejection(customer: int) -> None:
    offer = on_sale({"a": 2}, strategy="lua-queue")
    order = buy(offer, customer, a=1).order.pk
    close_now(offer)
    save_queued()
    row = Ending.objects.get()
    assert (row.order_id, row.state, row.by_id) == (order, "rejected", None)
    assert Order.objects.get().created_at < row.at < now()
    page = shown(logged_in(customer), order)
    assert f'Rejected</b> <time datetime="{row.at:%Y-%m-%dT%H:%M:%S}' in page


def test_an_order_that_is_paid_after_all_keeps_its_ending(order: UUID, customer: int) -> None:
    expire(order)
    receive_payment("pay_1", order=order, amount=Order.objects.get(pk=order).total)
    assert state(order) == "paid"
    page = shown(logged_in(customer), order)
    assert events(page) == ["Placed", "Saved", "Expired", "Paid"]


def test_operators_read_by_whom_and_when(admin_client: Client, offer: OnSale, customer: int) -> None:
    by_customer, by_operator, expired, pending = (buy(offer, customer, a=1).order.pk for _ in range(4))
    cancel(by_customer)
    run_action(admin_client, ORDERS, "cancel", by_operator)
    expire(expired)
    assert Ending.objects.get(pk=by_operator).by == User.objects.get(username="admin")
    rows = {row["id"]: (row["ended"], row["ended_by"]) for row in exported(admin_client)}
    times = {row.order_id: f"{row.at:%Y-%m-%d %H:%M:%S}" for row in Ending.objects.all()}
    assert rows == {
        str(by_customer): (times[by_customer], str(User.objects.get(pk=customer))),
        str(by_operator): (times[by_operator], "admin"),
        str(expired): (times[expired], ""),
        str(pending): ("", ""),
    }


# Unpaid orders


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
