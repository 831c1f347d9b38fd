"""The list of refunds: an operator marks only refunds that the page has shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from shop.models import Order, Refund
from shop.orders import payments
from shop.orders.returns import receive_chargeback, return_order
from tests.factories import at_once, new_customer, on_sale
from tests.shop.conftest import buy
from tests.shop.test_admin import ORDERS, PAYMENTS, REFUNDS, bought, get, paid_twice, post, rows, run_action, text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def partly_returned(units: int = 3) -> tuple[Order, Refund]:
    """Return a paid order of some units, and the refund that is due for one returned unit."""
    order = Order.objects.get(pk=buy(on_sale({"a": 10}, price="9.90"), a=units).order.pk)
    payments.receive_payment(f"pay-{order.pk}", order=order.pk, amount=order.total)
    return order, gives_back(order, 1)


def gives_back(order: Order, total: int) -> Refund:
    """Give units back until `total` units of the order are returned, and return the refund that is due."""
    return_order(order.pk, by=new_customer(), returned={"a": total})
    return Refund.objects.latest("pk")


def shown(page: str) -> list[str]:
    """Return the ids of the rows that a list page lets operators choose."""
    return re.findall(r'name="_selected_action" value="([^"]+)"', page)


def test_a_refund_is_read_only_and_says_what_to_send_and_why(admin_client: Client) -> None:
    order, due = partly_returned()
    (row,) = rows(get(admin_client, REFUNDS, state="due")).values()
    assert [row[name] for name in ("order_label", "customer", "payment_label", "money", "why", "state", "since")] == [
        *(str(order.pk), str(order.customer), f"pay-{order.pk}", "9.90 EUR", "Units were returned.", "due"),
        f"{due.created_at:%Y-%m-%d %H:%M:%S}",
    ]
    page = text(get(admin_client, f"{REFUNDS}{due.pk}/change/"))
    assert all(part in page for part in (str(order.pk), "9.90 EUR", "Units were returned.", "due"))
    for address in (f"{due.pk}/change/", f"{due.pk}/delete/", "add/"):
        assert admin_client.post(f"{REFUNDS}{address}", {"amount": "1", "post": "yes"}).status_code == 403


def test_refunds_on_other_pages_are_never_marked(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator cannot choose refunds "across all pages"."""
    monkeypatch.setattr("shop.admin.refunds.RefundAdmin.list_per_page", 1)
    order, _ = partly_returned()
    gives_back(order, 2)
    page = get(admin_client, REFUNDS)
    assert "across all pages" not in page
    (chosen,) = shown(page)
    form = {"action": "refund", "_selected_action": [chosen], "index": "0", "select_across": "1"}
    assert "Only refunds on the page that you saw were tried" in post(admin_client, REFUNDS, form)
    assert list(Refund.objects.exclude(sent_at=None).values_list("pk", flat=True)) == [int(chosen)]
    monkeypatch.setattr("shop.admin.refunds.RefundAdmin.list_disable_select_all", False)
    assert "across all pages" in get(admin_client, REFUNDS), "the negative control"


def test_a_refund_is_marked_once_with_user_and_time(staff: Callable[..., Client]) -> None:
    _, due = partly_returned()
    ada, bob = (staff("view_refund", "change_refund", "view_payment", "view_order") for _ in range(2))
    run_action(ada, REFUNDS, "refund", due.pk)
    by, at = Refund.objects.values_list("sent_by__username", "sent_at").get()
    assert f"{due} was not marked as refunded: it is not due." in run_action(bob, REFUNDS, "refund", due.pk)
    assert Refund.objects.values_list("sent_by__username", "sent_at").get() == (by, at)
    assert [(entry.user.username, entry.object_repr) for entry in LogEntry.objects.all()] == [(by, str(due))]
    (row,) = rows(get(ada, REFUNDS, state="sent")).values()
    assert row["state"] == "refunded"
    assert f"{at:%Y-%m-%d %H:%M:%S} by {by}" in text(get(ada, f"{REFUNDS}{due.pk}/change/"))
    (row,) = rows(get(ada, PAYMENTS, refund="done")).values()
    assert (row["result"], row["due"], row["refunded"]) == ("partly refunded", "-", f"{at:%Y-%m-%d %H:%M:%S} by {by}")
    assert rows(get(ada, REFUNDS, state="due")) == rows(get(ada, PAYMENTS, refund="due")) == {}
    assert rows(get(ada, ORDERS, refund="due")) == {}


def test_operators_at_once_mark_a_refund_once() -> None:
    _, due = partly_returned()
    operators = [new_customer() for _ in range(4)]
    marked: Any = at_once(*[lambda by=by: payments.mark_refunded(due.pk, by=by) for by in operators])
    assert sorted(marked) == [False, False, False, True]
    assert Refund.objects.get().sent_by_id == operators[marked.index(True)]


@pytest.mark.parametrize("query", ["", "?state=due"])
def test_chosen_refunds_that_a_chargeback_replaced_are_told(admin_client: Client, query: str) -> None:
    order, due = partly_returned()
    chosen = shown(get(admin_client, f"{REFUNDS}{query}"))
    receive_chargeback("cb_1", payment=f"pay-{order.pk}", amount=Decimal("29.70"))
    said = run_action(admin_client, f"{REFUNDS}{query}", "refund", *chosen)
    assert "Not in this list any more, and not marked as refunded: 1 of the chosen refunds." in said
    assert not Refund.objects.filter(pk=due.pk).exists()


def test_a_chargeback_is_a_row_that_cannot_be_marked(admin_client: Client) -> None:
    order, _ = partly_returned()
    receive_chargeback("cb_1", payment=f"pay-{order.pk}", amount=Decimal("29.70"))
    refund = Refund.objects.get()
    (row,) = rows(get(admin_client, REFUNDS, state="sent")).values()
    assert (row["state"], row["money"]) == ("charged back", "29.70 EUR")
    page = text(get(admin_client, f"{REFUNDS}{refund.pk}/change/"))
    assert f"{refund.sent_at:%Y-%m-%d %H:%M:%S} by the provider" in page
    assert "is not due" in run_action(admin_client, REFUNDS, "refund", refund.pk)
    assert Refund.objects.get().sent_by is None


def test_due_refunds_come_first_and_the_order_sums_its_refunds(admin_client: Client) -> None:
    order, first = partly_returned()
    second, third = gives_back(order, 2), gives_back(order, 3)
    payments.mark_refunded(first.pk, by=new_customer())
    assert shown(get(admin_client, REFUNDS)) == [str(refund.pk) for refund in (second, third, first)]
    assert "19.80 EUR due, 9.90 EUR sent" in text(get(admin_client, f"{ORDERS}{order.pk}/change/"))


def test_refunds_are_found_from_every_page(admin_client: Client) -> None:
    offer = on_sale({"a": 10})
    bought(offer, a=1)
    order = paid_twice(offer)
    second = order.payments.get(outcome="refund_due")
    overview = get(admin_client, "/admin/")
    assert "Refunds 1 due" in text(overview)
    assert f'href="{REFUNDS}?state=due"' in overview
    found = rows(get(admin_client, ORDERS, refund="due"))
    assert {name: row["refund"] for name, row in found.items()} == {str(order.pk): "due"}
    assert len(rows(get(admin_client, ORDERS))) == 2
    found = rows(get(admin_client, PAYMENTS, refund="due"))
    assert [(name, row["result"], row["note"]) for name, row in found.items()] == [
        (second.reference, "refund due", "The order is already paid.")
    ]
    for page in (PAYMENTS, f"{PAYMENTS}{second.pk}/change/"):
        assert f'href="{REFUNDS}?payment={second.pk}"' in get(admin_client, page), page
    page = get(admin_client, f"{ORDERS}{order.pk}/change/")
    assert second.reference in page
    assert f'href="{REFUNDS}?q={order.pk}"' in page
    for query in (f"?payment={second.pk}", f"?q={order.pk}"):
        (row,) = rows(get(admin_client, f"{REFUNDS}{query}")).values()
        assert row["order_label"] == str(order.pk)


def test_a_marked_payment_is_still_answered_as_before() -> None:
    order = paid_twice(on_sale({"a": 10}))
    due = order.payments.get(outcome="refund_due")
    assert payments.mark_refunded(due.refunds.get().pk, by=User.objects.latest("pk").pk)
    assert payments.receive_payment(due.reference, order=order.pk, amount=order.total).payment.outcome == "refund_due"
