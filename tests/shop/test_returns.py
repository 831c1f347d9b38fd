"""Paid orders are returned once, as a whole or by item, by an operator or a chargeback. Refunds are tracked."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from redis import Redis

from inventory.errors import OverLimit
from inventory.strategies import registry
from shop.models import Order, OrderItem, Payment, Refund, UnmatchedReport
from shop.orders import payments
from shop.orders.customer_changes import pay_order
from shop.orders.errors import NotReturnable
from shop.orders.queued import save_queued
from shop.orders.returns import receive_chargeback, return_order
from shop.orders.saving import return_items
from tests.factories import DISTINCT, OnSale, at_once, fast_and_slow, new_customer, on_sale
from tests.shop.conftest import Buyer, Provider, assert_conserved, assert_problem, buy, on_hand, payment, state, taken
from tests.shop.test_admin import ORDERS, REFUNDS, WHY, get, post, run_action, text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def paid(offer: OnSale, customer: int, **units: int) -> UUID:
    """Return a paid order. The reference of its payment is `pay_` and the customer id."""
    order = buy(offer, customer, **units).order.pk
    save_queued()
    total = Order.objects.get(pk=order).total
    payments.receive_payment(f"pay_{customer}", order=order, amount=total)
    return order


def refunds() -> list[tuple[Decimal, bool]]:
    """Return each refund's amount, and whether it was sent."""
    return [(refund.amount, refund.sent_at is not None) for refund in Refund.objects.order_by("pk")]


def chargeback(customer: int, amount: str, reference: str = "cb_1", **more: Any) -> dict[str, Any]:
    return {"reference": reference, "payment": f"pay_{customer}", "amount": amount, "currency": "EUR", **more}


def reports_chargeback(provider: Provider, body: dict[str, Any]) -> Any:
    return provider.reports(body, path="/api/chargebacks/")


@pytest.mark.parametrize("name", fast_and_slow(DISTINCT))
def test_a_paid_order_is_returned_once(customer: int, name: str) -> None:
    offer = on_sale({"a": 5, "b": 5}, strategy=name, limit=2, price="9.90")
    order = paid(offer, customer, a=2, b=1)

    assert [return_order(order, by=new_customer()) for _ in range(3)] == [Decimal("29.70"), 0, 0]

    assert (state(order), taken(), refunds()) == ("refunded", {"a": 0, "b": 0}, [(Decimal("29.70"), False)])
    assert (on_hand("a")[0], on_hand("b")[0]) == (5, 5)
    assert_conserved()
    # The limit per customer does not count returned units. This holds in Redis, too.
    assert buy(offer, customer, a=2).order.state == "pending"
    with pytest.raises(OverLimit):
        buy(offer, customer, a=1)
    save_queued()
    assert registry.counters().reserved() == {}
    assert_conserved()


@pytest.mark.parametrize("name", ["guarded-update", "lua-queue", "unit-rows"])
def test_items_are_returned_one_by_one(customer: int, name: str) -> None:
    offer = on_sale({"a": 5, "b": 5}, strategy=name, limit=3, price="9.90")
    order = paid(offer, customer, a=3, b=1)
    for returned, amount in (({"a": 1}, "9.90"), ({"a": 1}, "0"), ({"a": 2, "b": 0}, "9.90")):
        assert return_order(order, by=new_customer(), returned=returned) == Decimal(amount)
    assert (state(order), taken(), on_hand("a")[0], on_hand("b")[0]) == ("paid", {"a": 1, "b": 1}, 4, 4)
    assert_conserved()
    assert return_order(order, by=new_customer()) == Decimal("19.80")
    assert (state(order), taken(), on_hand("a")[0], on_hand("b")[0]) == ("refunded", {"a": 0, "b": 0}, 5, 5)
    assert sum(amount for amount, _ in refunds()) == Payment.objects.get().amount
    assert_conserved()


def test_no_more_units_are_returned_than_were_bought(customer: int) -> None:
    """The shop refuses such a return, and so does a constraint of the table."""
    order = paid(on_sale({"a": 5, "b": 5}), customer, a=2)
    for returned in ({"a": 3}, {"b": 1}, {"a": 1, "b": 1}):
        with pytest.raises(NotReturnable):
            return_order(order, by=customer, returned=returned)
    with pytest.raises(IntegrityError), transaction.atomic():
        return_items(Order.objects.get(), {"a": 3})
    assert (refunds(), on_hand("a")[0]) == ([], 3)


def test_returns_at_once_return_once(customer: int) -> None:
    order = paid(on_sale({"a": 5}, price="9.90"), customer, a=2)
    back = partial(return_order, order, by=customer)
    taken_back = partial(receive_chargeback, "cb_1", payment=f"pay_{customer}", amount=Decimal("19.80"))
    answers = at_once(back, back, taken_back, taken_back)
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert (state(order), on_hand("a")[0], taken()) == ("refunded", 5, {"a": 0})
    assert refunds() == [(Decimal("19.80"), True)]
    assert_conserved()


def test_money_for_a_returned_order_goes_back(customer: int) -> None:
    order = paid(on_sale({"a": 5}), customer, a=1)
    return_order(order, by=customer)
    late = payments.receive_payment("another", order=order, amount=Decimal("9.90")).payment
    assert (late.outcome, late.note) == ("refund_due", "The order is refunded.")
    assert_conserved()


@pytest.fixture
def provider(redis: Redis, settings: Any) -> Provider:
    settings.PAYMENT_SECRET = "shared"
    return Provider()


@pytest.mark.parametrize("name", ["guarded-update", "lua-queue"])
def test_a_chargeback_returns_the_order_once(provider: Provider, buyer: Buyer, name: str) -> None:
    customer = buyer.customer
    offer = on_sale({"a": 5}, strategy=name, limit=2, price="9.90")
    order = paid(offer, customer, a=2)
    first, again = (reports_chargeback(provider, chargeback(customer, "19.80")) for _ in range(2))
    assert (first.status_code, again.status_code) == (200, 200)
    expected = {**chargeback(customer, "19.80"), "order": str(order), "note": ""}
    assert first.json() == again.json() == {**expected, "received_at": first.json()["received_at"]}
    assert ("Idempotent-Replayed" in first.headers, again.headers["Idempotent-Replayed"]) == (False, "true")
    assert (state(order), on_hand("a")[0], taken(), refunds()) == ("refunded", 5, {"a": 0}, [(Decimal("19.80"), True)])
    order_now = buyer.get(f"/api/orders/{order}/").json()
    assert (order_now["state"], order_now["items"][0]["returned"]) == ("refunded", 2)
    assert_conserved()


def test_a_chargeback_replaces_refunds_that_were_not_sent(provider: Provider, customer: int) -> None:
    order = paid(on_sale({"a": 5}, price="9.90"), customer, a=2)
    return_order(order, by=customer, returned={"a": 1})
    answer = reports_chargeback(provider, chargeback(customer, "19.80")).json()
    assert answer["note"] == "Replaces a refund of 9.90 that was due."
    assert (state(order), on_hand("a")[0], refunds()) == ("refunded", 5, [(Decimal("19.80"), True)])
    assert_conserved()


def test_a_chargeback_may_not_exceed_the_money_left_after_a_refund(provider: Provider, customer: int) -> None:
    order = paid(on_sale({"a": 5}, price="9.90"), customer, a=2)
    return_order(order, by=customer, returned={"a": 1})
    payments.mark_refunded(Refund.objects.get().pk, by=customer)
    problem = assert_problem(reports_chargeback(provider, chargeback(customer, "19.80")), 422, "wrong-amount")
    assert (problem["expected"], problem["received"]) == ("9.90", "19.80")
    assert reports_chargeback(provider, chargeback(customer, "9.90", "cb_2")).status_code == 200
    assert (state(order), on_hand("a")[0]) == ("refunded", 5)
    assert refunds() == [(Decimal("9.90"), True)] * 2
    # The provider took back refunded money, so an operator must act.
    assert UnmatchedReport.objects.get().reason == "What the shop still has of this payment is 9.90, not 19.80."


def test_a_chargeback_of_a_second_payment_leaves_the_order_paid(provider: Provider, customer: int) -> None:
    order = paid(on_sale({"a": 5}, price="9.90"), customer, a=1)
    payments.receive_payment("second", order=order, amount=Decimal("9.90"))
    assert reports_chargeback(provider, chargeback(customer, "9.90", payment="second")).status_code == 200
    assert (state(order), on_hand("a")[0], refunds()) == ("paid", 4, [(Decimal("9.90"), True)])


@pytest.mark.parametrize(
    ("wrong", "status", "slug"),
    [
        ({"payment": "nobody"}, 404, "unknown-payment"),
        ({"amount": "9.89"}, 422, "wrong-amount"),
        ({"currency": "USD"}, 422, "wrong-currency"),
        ({"reference": ""}, 400, "invalid"),
    ],
)
def test_a_chargeback_that_does_not_match_is_listed(
    provider: Provider, customer: int, wrong: dict[str, Any], status: int, slug: str
) -> None:
    order = paid(on_sale({"a": 5}, price="9.90"), customer, a=1)
    for _ in range(2):
        assert_problem(reports_chargeback(provider, {**chargeback(customer, "9.90"), **wrong}), status, slug)
    assert (state(order), refunds()) == ("paid", [])
    assert UnmatchedReport.objects.filter(settled_at=None).count() == 1
    assert reports_chargeback(provider, chargeback(customer, "9.90")).status_code == 200
    assert_problem(reports_chargeback(provider, chargeback(customer, "9.80")), 422, "reference-reused")


def test_a_chargeback_needs_a_signature(provider: Provider, customer: int) -> None:
    order = paid(on_sale({"a": 5}, price="9.90"), customer, a=1)
    unsigned = provider.reports(chargeback(customer, "9.90"), "t=1,v1=" + "0" * 64, path="/api/chargebacks/")
    assert_problem(unsigned, 403, "signature")
    assert_problem(reports_chargeback(provider, payment(order)), 400, "invalid", pointers=["#/payment"])
    assert state(order) == "paid"


def test_operators_refund_whole_orders_and_items(admin_client: Client, customer: int) -> None:
    offer = on_sale({"a": 5, "b": 5}, price="9.90")
    order = paid(offer, customer, a=2, b=1)
    pending = buy(offer, a=1).order.pk
    link = f"{ORDERS}{order}/refund-items/"
    assert link in get(admin_client, f"{ORDERS}{order}/change/")
    assert "of 2 at 9.90 EUR" in text(get(admin_client, link))
    a, b = OrderItem.objects.filter(order=order).order_by("product")
    form = {f"item-{a.pk}": "1", f"item-{b.pk}": "0", f"shown-{a.pk}": "0", f"shown-{b.pk}": "0"}
    assert "This field is required." in post(admin_client, link, form)
    form["why"] = WHY
    assert f"{order}: 9.90 EUR to refund; the units are back." in post(admin_client, link, form)
    refused = post(admin_client, link, {**form, f"item-{a.pk}": "3"})
    assert "Ensure this value is less than or equal to 2" in refused
    assert (state(order), on_hand("a")[0]) == ("paid", 3)
    assert f"Returned units for 9.90 EUR . {WHY}" in text(get(admin_client, f"{ORDERS}{order}/change/"))

    page = run_action(admin_client, ORDERS, "refund_orders", order, pending)
    assert f"{order} is refunded." in page
    assert f"{pending} was not refunded: The order is pending." in page
    assert (state(order), refunds()) == ("refunded", [(Decimal("9.90"), False), (Decimal("19.80"), False)])
    run_action(admin_client, REFUNDS, "refund", *Refund.objects.values_list("pk", flat=True))
    assert refunds() == [(Decimal("9.90"), True), (Decimal("19.80"), True)]
    assert_conserved()


def test_refunding_orders_needs_permission(staff: Callable[..., Client], customer: int) -> None:
    order = paid(on_sale({"a": 5}), customer, a=1)
    link = f"{ORDERS}{order}/refund-items/"
    item = OrderItem.objects.get()
    form = {f"item-{item.pk}": "1", f"shown-{item.pk}": "0", "why": WHY}
    watcher, operator = staff("view_order"), staff("view_order", "change_order")
    run_action(watcher, ORDERS, "refund_orders", order)
    assert (watcher.post(link, form).status_code, state(order)) == (403, "paid")
    assert (operator.post(link, form).status_code, state(order)) == (302, "refunded")


def test_a_free_order_and_one_that_its_customer_paid_can_be_returned(customer: int) -> None:
    free = buy(on_sale({"a": 5}, price="0.00"), customer, a=2).order.pk
    paid_by_customer = buy(on_sale({"b": 5}), customer, b=1).order.pk
    pay_order(paid_by_customer, customer=customer)
    assert [return_order(order, by=customer) for order in (free, paid_by_customer)] == [0, Decimal("9.90")]
    assert (state(free), on_hand("a")[0], refunds()) == ("refunded", 5, [(Decimal("9.90"), False)])
