"""A form that was opened before another person's change does not overwrite that change."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from shop.models import Order, OrderItem, Refund, Sale, SaleItem
from shop.orders.returns import return_order
from tests.factories import OnSale, at_once, new_customer, on_sale
from tests.shop.conftest import assert_conserved, on_hand
from tests.shop.payment_support import hidden
from tests.shop.test_admin import ORDERS, SALES, WHY, get, in_hours, post, run_action, text, the_form
from tests.shop.test_returns import paid

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def opened_form(client: Client, offer: OnSale, **more: Any) -> dict[str, Any]:
    """Return the form of a sale that is open now, with what the page shows at present."""
    window = {"opens": in_hours(-1), "closes": in_hours(1)}
    return the_form(offer, **{**window, **more}) | hidden(get(client, f"{SALES}{offer.sale}/change/"), "shown")


def test_a_closed_sale_is_not_reopened_by_an_older_form(admin_client: Client) -> None:
    offer = on_sale({"a": 10}, strategy="lua")
    link = f"{SALES}{offer.sale}/change/"
    form = opened_form(admin_client, offer)
    run_action(admin_client, SALES, "close", offer.sale)
    closed = Sale.objects.get().closes_at
    page = post(admin_client, link, form)
    assert "The sale has changed since this page was opened" in page
    assert Sale.objects.values_list("name", "closes_at").get() == ("Sale by lua", closed)
    # A newly opened page can be saved.
    assert admin_client.post(link, opened_form(admin_client, offer)).status_code == 302
    assert Sale.objects.get().name == "Another"


@pytest.mark.parametrize("change", [{"price": Decimal("7.00")}, {"limit": 2}])
def test_the_price_of_another_operator_is_not_overwritten(admin_client: Client, change: dict[str, Any]) -> None:
    offer = on_sale({"a": 10}, price="9.90")
    link = f"{SALES}{offer.sale}/change/"
    form = opened_form(admin_client, offer, **{"items-0-price": "9.90"})
    SaleItem.objects.update(**change)
    assert "The sale has changed since this page was opened" in post(admin_client, link, form)
    assert SaleItem.objects.filter(**change).exists()


def test_another_rate_of_a_waiting_room_keeps_the_opening(admin_client: Client) -> None:
    """Changing the admission rate keeps the exact opening time, on which the line and tickets depend."""
    offer = on_sale({"a": 3})
    Sale.objects.filter(pk=offer.sale).update(waiting_room=True, admitted_per_second=5)
    before = Sale.objects.get()
    link = f"{SALES}{offer.sale}/change/"
    form = opened_form(admin_client, offer, opens=before.opens_at, waiting_room="on", admitted_per_second="9")
    assert admin_client.post(link, form).status_code == 302
    assert Sale.objects.values_list("opens_at", "admitted_per_second").get() == (before.opens_at, 9)


@pytest.mark.parametrize(("hours", "status"), [(-0.5, 200), (1, 302)], ids=["in the past", "to come"])
def test_a_waiting_room_that_has_opened_is_only_postponed(admin_client: Client, hours: float, status: int) -> None:
    offer = on_sale({"a": 3}, opens=timedelta(hours=-1), closes=timedelta(hours=3))
    Sale.objects.filter(pk=offer.sale).update(waiting_room=True, admitted_per_second=5)
    room = {"waiting_room": "on", "admitted_per_second": "5"}
    form = opened_form(admin_client, offer, opens=in_hours(hours), closes=in_hours(3), **room)
    answer = admin_client.post(f"{SALES}{offer.sale}/change/", form)
    assert answer.status_code == status
    assert ("counts from then on" in answer.text) is (status == 200)


def test_preheating_leaves_an_open_form_valid(admin_client: Client) -> None:
    """Preheating leaves an open form valid. Celery may preheat the sale at any time."""
    offer = on_sale({"a": 10}, strategy="lua", preheat=False)
    form = opened_form(admin_client, offer)
    run_action(admin_client, SALES, "preheat", offer.sale)
    assert admin_client.post(f"{SALES}{offer.sale}/change/", form).status_code == 302


def refund_form(page: str, units: int) -> dict[str, str]:
    """Return the fields of an opened refund form, with `units` as the total number of returned units."""
    (name,) = re.findall(r'name="(item-\d+)"', page)
    return {name: str(units), "why": WHY, **hidden(page, "shown-")}


def test_units_of_two_operators_are_both_returned(admin_client: Client) -> None:
    """If two operators each return a unit, the second is told of the first one's unit, and both count."""
    order = paid(on_sale({"a": 5}, price="9.90"), new_customer(), a=3)
    link = f"{ORDERS}{order}/refund-items/"
    first, second = (refund_form(get(admin_client, link), 1) for _ in range(2))
    assert f"{order}: 9.90 EUR to refund; the units are back." in post(admin_client, link, first)
    page = post(admin_client, link, second)
    assert f"{order} was not refunded: 1 × a have come back since the page was opened. Count again." in page
    assert "to refund; the units are back" not in page
    assert "9.90 EUR to refund" in post(admin_client, link, refund_form(get(admin_client, link), 2))
    assert (OrderItem.objects.get().returned, on_hand()[0], Refund.objects.count()) == (2, 4, 2)
    assert_conserved()


def test_of_two_forms_at_once_one_is_booked(admin_client: Client) -> None:
    order = paid(on_sale({"a": 5}, price="9.90"), new_customer(), a=3)
    link = f"{ORDERS}{order}/refund-items/"
    form = refund_form(get(admin_client, link), 1)

    def send() -> bool:
        client = Client()
        client.cookies = admin_client.cookies
        return "was not refunded: 1 × a have" in text(client.post(link, form, follow=True).content.decode())

    assert sorted(at_once(*[send] * 3)) == [False, True, True]  # type: ignore[type-var]
    assert (OrderItem.objects.get().returned, Refund.objects.count(), on_hand()[0]) == (1, 1, 3)


def test_a_form_that_does_not_say_what_it_showed_is_refused(admin_client: Client) -> None:
    order: UUID = paid(on_sale({"a": 5}), new_customer(), a=1)
    link = f"{ORDERS}{order}/refund-items/"
    (name,) = re.findall(r'name="(item-\d+)"', get(admin_client, link))
    assert admin_client.post(link, {name: "1", "why": WHY}).status_code == 200
    assert Order.objects.get().state == "paid"
    return_order(order, by=new_customer())
    assert Order.objects.get().state == "refunded"
