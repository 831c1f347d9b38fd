"""How orders end: when and by whom is written together with the state, and shown to customers and operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from shop.models import Ending, Order
from shop.orders import states
from shop.orders.customer_changes import cancel_order
from shop.orders.ending import end_pending
from shop.orders.expiry import expire_unpaid
from shop.orders.payments import receive_payment
from shop.orders.queued import save_queued
from tests.factories import OnSale, close_now, on_sale
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


def assert_recorded(order: UUID, who: str, since: datetime) -> None:
    """Check that the row of an order says when and by whom it was ended, and that its page says the same."""
    _, ended, line = ENDS[who]
    row = Ending.objects.select_related("by").get()
    by = {"customer": customer_of(order), "operator": row.by_id, "program": None}[who]
    assert (row.order_id, row.state, row.by_id) == (order, ended, by)
    assert since < row.at < now()
    page = shown(logged_in(customer_of(order)), order)
    assert events(page) == ["Placed", "Saved", line]
    assert f'{line}</b> <time datetime="{row.at:%Y-%m-%dT%H:%M:%S}' in page


@pytest.mark.parametrize("who", ENDS)
def test_a_row_and_the_page_say_when_and_by_whom(order: UUID, who: str) -> None:
    before = now()
    ENDS[who][0](order)
    assert_recorded(order, who, before)


@pytest.mark.parametrize("who", ENDS)
def test_without_the_row_there_is_no_time(order: UUID, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the row, the page shows no time. Orders that an earlier version ended have no row."""
    monkeypatch.setattr(states, "record_endings", lambda *_, **__: None)
    before = now()
    ENDS[who][0](order)
    with pytest.raises(Ending.DoesNotExist):
        assert_recorded(order, who, before)
    page = shown(logged_in(customer_of(order)), order)
    assert events(page)[-1] == ENDS[who][1].capitalize()
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
