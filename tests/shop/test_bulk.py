"""Actions of the admin on many rows run in batches, can be repeated, and show one message."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.template.response import TemplateResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext

from inventory.models import StockItem
from shop.admin import bulk
from shop.models import BrowserSession, Order, Refund, Sale, SignOut, UnmatchedReport
from shop.orders import payments, unmatched
from shop.orders.returns import return_order
from tests.factories import OnSale, new_customer, on_sale, orders_in
from tests.shop.conftest import assert_conserved, buy, messages_of, on_hand
from tests.shop.test_admin import ORDERS, REFUNDS, SALES, UNMATCHED, many_orders

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture(autouse=True)
def _small_batches_and_time_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 10)
    monkeypatch.setattr(bulk, "TIME", 600.0)


def run_on_page(client: Client, path: str, action: str, *, across: str = "0") -> list[str]:
    """Run an action on all rows of a page, or of the list if `across` is "1". Return the messages for the next page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TemplateResponse, "rendered_content", "")
        shown: Any = client.get(path)
    chosen = [str(row.pk) for row in shown.context_data["cl"].result_list]
    form = {"action": action, "_selected_action": chosen, "index": "0", "select_across": across, "why": "tried"}
    response = client.post(path, form)
    assert response.status_code == 302
    return messages_of(response)


run_on_all = partial(run_on_page, across="1")


def pending(count: int) -> OnSale:
    offer = on_sale({"a": 1000}, strategy="lua")
    many_orders(offer, "a", count)
    return offer


def test_what_is_not_reached_in_time_is_counted_and_done_by_repeating(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "TIME", 0.0)
    pending(25)
    path = f"{ORDERS}?state__exact=pending"
    with CaptureQueriesContext(connection) as queries:
        said = [run_on_all(admin_client, path, "cancel")]
    assert len(queries) < 60, "one by one, each order would take more than ten statements"
    said += [run_on_all(admin_client, path, "cancel") for _ in range(2)]
    assert said == [
        ["10 orders are cancelled. 15 orders are left: repeat the action to go on."],
        ["10 orders are cancelled. 5 orders are left: repeat the action to go on."],
        ["5 orders are cancelled."],
    ]
    (again,) = run_on_all(admin_client, ORDERS, "cancel")
    assert again.startswith("10 orders had been cancelled before. 15 orders are left")
    assert (orders_in("cancelled"), on_hand()[0], LogEntry.objects.count()) == (25, 1000, 25)
    assert_conserved()


def test_rows_that_are_changed_one_by_one_end_in_time_too(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "TIME", 0.0)
    pending(3)
    left = "2 orders are left: repeat the action to go on."
    StockItem.objects.filter(sku="a").update(received=997)  # Make a return break `on_hand <= received`.
    (message,) = run_on_all(admin_client, ORDERS, "cancel")
    assert message.count("was not cancelled. Try again.") == 1
    assert message.endswith(left)
    StockItem.objects.filter(sku="a").update(received=1000)
    Order.objects.update(state="paid")
    assert run_on_page(admin_client, ORDERS, "refund_orders")[0].endswith(f"is refunded. {left}")


def test_many_users_are_signed_out_with_one_message(admin_client: Client) -> None:
    users = [new_customer() for _ in range(20)]
    for user in users:
        Client().force_login(User.objects.get(pk=user))
    form = {"action": "sign_out", "_selected_action": users, "index": "0", "select_across": "0"}
    with CaptureQueriesContext(connection) as queries:
        response = admin_client.post("/admin/auth/user/", form)
    assert messages_of(response) == ["20 users are signed out everywhere."]
    assert len(queries) < 40
    assert list(SignOut.objects.values_list("times", flat=True)) == [1] * 20
    assert BrowserSession.objects.count() == 1, "that of the operator"


def test_a_message_shows_a_few_refusals_and_counts_the_others(admin_client: Client) -> None:
    pending(9)
    Order.objects.filter(pk__in=Order.objects.order_by("pk")[:8].values("pk")).update(state="paid")
    (message,) = run_on_all(admin_client, ORDERS, "cancel")
    assert message.count("was not cancelled: The order is paid.") == bulk.SHOWN
    assert re.match(r"\S+ is cancelled\. ", message)
    assert message.endswith(" 3 more orders were not cancelled.")
    assert (orders_in("paid"), orders_in("cancelled")) == (8, 1)


def test_an_order_that_cannot_be_cancelled_does_not_stop_others(admin_client: Client) -> None:
    offer = on_sale({"a": 5, "b": 5})
    stuck = buy(offer, a=3).order.pk
    buy(offer, b=1)
    StockItem.objects.filter(sku="a").update(received=2)  # Make the return of `a` break `on_hand <= received`.
    (message,) = run_on_all(admin_client, ORDERS, "cancel")
    assert f"{stuck} was not cancelled. Try again. Postgres reports:" in message
    assert dict(Order.objects.values_list("items__product", "state")) == {"a": "pending", "b": "cancelled"}
    assert on_hand("b")[0] == 5


@pytest.mark.parametrize("action", ["refund_orders", "refund", "settle", "preheat", "close"])
def test_every_action_leaves_one_message(admin_client: Client, action: str) -> None:
    path, said, changed = {
        "refund_orders": (ORDERS, "3 orders are refunded.", Order.objects.filter(state="refunded")),
        "refund": (REFUNDS, "3 refunds are marked as refunded.", Refund.objects.exclude(sent_at=None)),
        "settle": (UNMATCHED, "3 unmatched reports are settled.", UnmatchedReport.objects.exclude(settled_at=None)),
        "preheat": (SALES, "3 sales are preheated.", Sale.objects.exclude(preheated_at=None)),
        "close": (SALES, "3 sales are closed.", Sale.objects.exclude(unloaded_at=None)),
    }[action]
    for number in range(3):
        offer = on_sale({f"s{number}": 3})
        order = buy(offer, **{f"s{number}": 1}).order
        for reference in (f"pay_{number}", f"again_{number}") if action == "refund" else (f"pay_{number}",):
            payments.receive_payment(reference, order=order.pk, amount=order.total)
        unmatched.record(str(number), "no such order")
    assert run_on_page(admin_client, path, action) == [said]
    assert changed.count() == 3
    assert len(run_on_page(admin_client, path, action)) == 1
    assert changed.count() == 3


@pytest.mark.parametrize(("path", "action"), [(ORDERS, "refund_orders"), (UNMATCHED, "settle")])
def test_money_is_settled_only_for_rows_that_the_page_showed(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, path: str, action: str
) -> None:
    """Money is settled only for rows that the operator saw, even by "select all". Rows that are gone are named."""
    monkeypatch.setattr("shop.admin.orders.OrderAdmin.list_per_page", 2)
    monkeypatch.setattr("shop.admin.unmatched.UnmatchedReportAdmin.list_per_page", 2)
    offer = on_sale({"a": 10})

    def come(number: int) -> None:
        order = buy(offer, a=1).order
        payments.receive_payment(f"pay_{number}", order=order.pk, amount=order.total)
        unmatched.record(str(number), "no such order")

    come(1)
    come(2)
    filtered = f"{path}?{'state__exact=paid' if path == ORDERS else 'state=open'}"
    gone, seen = (row.pk for row in admin_client.get(filtered).context["cl"].result_list)
    come(3)
    (return_order if path == ORDERS else unmatched.settle)(gone, by=new_customer())
    form = {
        "action": action,
        "_selected_action": [str(gone), str(seen)],
        "index": "0",
        "why": "x",
        "select_across": "1",
    }
    (message,) = admin_client.post(filtered, form, follow=True).context["messages"]
    assert "Not in this list any more" in str(message)
    assert "on the page that you saw" in str(message)
    assert message.level == messages.WARNING
    settled = UnmatchedReport.objects.exclude(settled_at=None).count()
    assert (orders_in("refunded"), settled) == ((2, 0) if path == ORDERS else (0, 2))
