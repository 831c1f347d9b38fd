"""A payment that an operator records by hand has the same outcome as one that the provider reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client

from inventory.models import StockItem
from shop.admin import recording
from shop.models import Order, Payment, Refund, Sale, UnmatchedReport
from shop.orders import payments
from shop.orders.customer_changes import cancel_order
from tests.factories import on_sale
from tests.shop.conftest import Provider, assert_conserved, make_due, payment, raising, state
from tests.shop.test_admin import ORDERS, PAYMENTS, bought, get, post, text
from tests.shop.test_admin_orders import time_line

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def order(redis: Any) -> Order:
    """A pending order of two units of a, for 19.80 EUR."""
    return bought(on_sale({"a": 5}, price="9.90"), a=2)


def page_of(order: Order) -> str:
    return f"{ORDERS}{order.pk}/record-payment/"


def record(client: Client, order: Order, amount: str = "19.80", reference: str = "", why: str = "") -> str:
    return post(client, page_of(order), {"amount": amount, "reference": reference, "why": why})


def test_a_payment_that_was_never_reported_pays_the_order(admin_client: Client, order: Order) -> None:
    assert page_of(order) in get(admin_client, f"{ORDERS}{order.pk}/change/")
    page = get(admin_client, page_of(order))
    assert re.search(r'<input type="number" name="amount" value="19.80"', page)
    assert "The order is then paid." in text(page)
    assert state(order.pk) == "pending", "only the form records it"
    assert f"{order} is paid." in record(admin_client, order, reference="pay_1")
    saved = Payment.objects.get()
    assert (saved.reference, saved.outcome, saved.amount, state(order.pk)) == ("pay_1", "paid", order.total, "paid")
    assert time_line(admin_client, order)[1:] == ["Paid 19.80 EUR, reference pay_1 . Recorded by hand. admin"]
    assert "Recorded a payment." in get(admin_client, f"{ORDERS}{order.pk}/history/")
    assert "Recorded by hand." in get(admin_client, f"{PAYMENTS}{saved.pk}/history/")
    assert_conserved()


def test_a_transfer_is_recorded_with_its_reason_and_operator(
    staff: Callable[..., Client], admin_client: Client, order: Order
) -> None:
    record(admin_client, order, why="By transfer, statement of 2026-11-27.")
    saved = Payment.objects.get()
    assert (saved.reference, state(order.pk)) == (f"operator/{order.pk}", "paid")
    (paid,) = time_line(admin_client, order)[1:]
    assert paid == f"Paid 19.80 EUR, reference {saved} . By transfer, statement of 2026-11-27. admin"
    assert time_line(staff("view_order"), order)[1:] == ["Recorded a payment admin"], "without view_payment"


def test_a_report_of_the_provider_that_comes_later_is_the_same_payment(
    admin_client: Client, order: Order, provider: Provider, settings: Any
) -> None:
    settings.PAYMENT_SECRET = "shared"
    record(admin_client, order, reference="pay_1")
    report = provider.reports(payment(order.pk, "pay_1"))
    assert (report.status_code, report.headers["Idempotent-Replayed"]) == (200, "true")
    assert (Payment.objects.count(), Refund.objects.count()) == (1, 0)
    assert provider.reports(payment(order.pk, "pay_2")).json()["outcome"] == "refund_due", "the negative control"


@pytest.mark.parametrize("form", [{"reference": "pay_1"}, {"why": "By transfer."}])
def test_a_form_that_is_sent_twice_records_one_payment(
    admin_client: Client, order: Order, form: dict[str, str]
) -> None:
    record(admin_client, order, **form)
    entries = LogEntry.objects.count()
    assert "had been recorded before; nothing was changed." in record(admin_client, order, **form)
    assert (Payment.objects.count(), Refund.objects.count(), LogEntry.objects.count()) == (1, 0, entries)
    assert "19.80 EUR is due for refund. The order is already paid." in record(admin_client, order, reference="pay_2")
    assert "already paid, so the money is then due" in text(get(admin_client, page_of(order)))
    assert Refund.objects.get().amount == order.total


def test_another_amount_is_not_booked_but_listed(admin_client: Client, order: Order) -> None:
    for _ in range(2):
        said = record(admin_client, order, amount="10.00", reference="pay_1")
        assert "The payment of 10.00 EUR was not booked. The order costs 19.80, not 10.00." in said
    assert (state(order.pk), Payment.objects.count()) == ("pending", 0)
    report = UnmatchedReport.objects.get()
    assert (report.reason, report.settled_at) == ("The order costs 19.80, not 10.00.", None)
    assert json.loads(report.report) == {**payment(order.pk, "pay_1", "10.00"), "recorded_by": "admin", "why": ""}
    entry = time_line(admin_client, order)[1]
    assert entry == "A payment of 10.00 EUR was not booked . The order costs 19.80, not 10.00. admin"


def test_the_reference_of_another_order_is_not_booked(admin_client: Client, order: Order) -> None:
    other = bought(on_sale({"b": 5}, price="19.80"), b=1)
    payments.receive_payment("pay_1", order=other.pk, amount=other.total)
    assert "The reference pay_1 belongs to another payment." in record(admin_client, order, reference="pay_1")
    assert (state(order.pk), UnmatchedReport.objects.count()) == ("pending", 1)


@pytest.mark.parametrize("ended", ["cancelled", "expired"])
@pytest.mark.parametrize(("left", "outcome"), [(2, "paid"), (1, "refund_due")])
def test_an_order_that_ended_is_paid_if_its_units_can_be_taken_again(
    admin_client: Client, order: Order, ended: str, left: int, outcome: str
) -> None:
    if ended == "cancelled":
        cancel_order(order.pk, customer=order.customer_id)
    else:
        make_due(order.pk)
        Order.objects.filter(pk=order.pk).update(state="expired")
    StockItem.objects.update(on_hand=left)
    assert "if they are sold, the money is due for refund" in text(get(admin_client, page_of(order)))
    said = record(admin_client, order, why="By transfer.")
    assert Payment.objects.get().outcome == outcome
    assert (state(order.pk), StockItem.objects.get().on_hand) == (("paid", 0) if left == 2 else (ended, 1))
    assert ("Its units were taken again." in said, "19.80 EUR is due for refund." in said) == (left == 2, left == 1)


@pytest.mark.parametrize(
    ("stock_shown", "why"), [("exact", "a: 2 wanted, 1 left"), ("few", "a: fewer than 2 are left")]
)
def test_the_note_hides_the_stock_that_the_sale_hides(order: Order, stock_shown: str, why: str) -> None:
    Sale.objects.update(stock_shown=stock_shown)
    cancel_order(order.pk, customer=order.customer_id)
    StockItem.objects.update(on_hand=1)
    payments.receive_payment("pay_1", order=order.pk, amount=order.total)
    assert Payment.objects.get().note == f"The order is cancelled. {why}"


def test_a_rejected_order_is_not_paid(admin_client: Client, order: Order) -> None:
    Order.objects.update(state="rejected")
    assert "The order cannot be paid any more" in text(get(admin_client, page_of(order)))
    assert "is due for refund. The order is rejected." in record(admin_client, order, reference="pay_1")
    assert (state(order.pk), Refund.objects.get().sent_at) == ("rejected", None)


WRONG: list[tuple[dict[str, str], str]] = [
    ({}, "Enter the reference, or say below how it was paid."),
    ({"why": " "}, "Enter the reference, or say below how it was paid."),
    ({"reference": "customer/1"}, "Enter 1 to 128 letters"),
    ({"reference": "operator/1"}, "Enter 1 to 128 letters"),
    ({"reference": "two words"}, "Enter 1 to 128 letters"),
    ({"reference": "x" * 129}, "at most 128 characters"),
    ({"why": "x" * 201}, "at most 200 characters"),
    ({"amount": "", "why": "x"}, "This field is required."),
    ({"amount": "-19.80", "why": "x"}, "greater than or equal to 0"),
    ({"amount": "19.801", "why": "x"}, "no more than 2 decimal places"),
    ({"amount": "1" * 20, "why": "x"}, "no more than 16 digits"),
]


def test_a_form_that_is_wrong_records_nothing(
    admin_client: Client, order: Order, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Render only the form's errors, because the page takes long.
    monkeypatch.setattr(recording, "render", lambda _, __, context: HttpResponse(str(context["form"].errors)))
    for form, error in WRONG:
        with subtests.test(error, form=form):
            assert error in record(admin_client, order, **form)
    assert (state(order.pk), Payment.objects.count(), UnmatchedReport.objects.count()) == ("pending", 0, 0)


def test_recording_needs_the_permission_to_add_payments(staff: Callable[..., Client], order: Order) -> None:
    for permissions in (("view_order", "change_order", "view_payment", "change_payment"), ("add_payment",)):
        client = staff(*permissions)
        assert client.get(page_of(order)).status_code == 403, permissions
        assert client.post(page_of(order), {"amount": "19.80", "reference": "pay_1"}).status_code == 403, permissions
    assert page_of(order) not in get(staff("view_order", "change_order"), f"{ORDERS}{order.pk}/change/")
    assert (state(order.pk), Payment.objects.count()) == ("pending", 0)
    operator = staff("view_order", "add_payment")
    assert page_of(order) in get(operator, f"{ORDERS}{order.pk}/change/")
    record(operator, order, reference="pay_1")
    assert state(order.pk) == "paid", "the negative control"


def test_without_postgres_the_operator_is_told(
    admin_client: Client, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payments, "record_payment", raising(OperationalError("the server has gone")))
    said = record(admin_client, order, reference="pay_1")
    assert "The payment was not recorded. Try again. Postgres reports: the server has gone" in said
    assert (Payment.objects.count(), UnmatchedReport.objects.count(), LogEntry.objects.count()) == (0, 0, 0)
