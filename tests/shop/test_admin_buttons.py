"""The buttons on the pages of a sale and of an order do the same as the list actions, after a confirmation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone
from redis import Redis

from shop.models import Order, Sale
from shop.sales import lifecycle
from tests.factories import on_sale
from tests.shop.conftest import assert_conserved, buy, on_hand, state
from tests.shop.test_admin import ORDERS, SALES, bought, get, post

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

HOUR = timedelta(hours=1)
WINDOWS = {"to come": (HOUR, 2 * HOUR), "open": (-HOUR, HOUR), "over": (-2 * HOUR, -HOUR)}


def offered(client: Client, path: str) -> set[str]:
    page = get(client, f"{path}change/")
    return {name for name in ("preheat", "close", "cancel", "refund-items") if f"{path}{name}" in page}


@pytest.mark.parametrize(
    ("phase", "buttons"), [("to come", {"preheat"}), ("open", {"preheat", "close"}), ("over", set())]
)
def test_the_page_of_a_sale_offers_what_can_be_done_with_it(
    admin_client: Client, staff: Callable[..., Client], phase: str, buttons: set[str]
) -> None:
    opens, closes = WINDOWS[phase]
    page = f"{SALES}{on_sale({'a': 1}, opens=opens, closes=closes).sale}/"
    assert offered(admin_client, page) == buttons
    assert offered(staff("view_sale"), page) == set()


def test_close_now_closes_the_sale_when_it_is_confirmed(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    buy(offer, a=1)
    page = f"{SALES}{offer.sale}/close/"
    assert "takes no more orders" in get(admin_client, page)
    assert admin_client.put(page).status_code == 200
    assert Sale.objects.get().closes_at > timezone.now(), "only the form closes it"
    assert LogEntry.objects.count() == 0
    assert "Sale by lua is closed." in post(admin_client, page, {})
    assert Sale.objects.get().closes_at <= timezone.now()
    assert redis.exists("{stock}:counter:a") == 0
    assert LogEntry.objects.get().change_message == "Closed."
    assert "was not closed: it is over." in post(admin_client, page, {})
    assert LogEntry.objects.count() == 1
    assert_conserved()


def test_preheat_loads_the_stock_when_it_is_confirmed(admin_client: Client) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    Sale.objects.update(preheated_at=None)
    page = f"{SALES}{offer.sale}/preheat/"
    get(admin_client, page)
    assert not Sale.objects.get().is_loaded
    assert "Sale by lua is preheated." in post(admin_client, page, {})
    assert Sale.objects.get().is_loaded
    assert LogEntry.objects.get().change_message == "Preheated."


def test_a_pending_order_is_cancelled_when_it_is_confirmed(admin_client: Client) -> None:
    order = bought(on_sale({"a": 3}), a=2)
    page = f"{ORDERS}{order.pk}/"
    assert offered(admin_client, page) == {"cancel"}
    get(admin_client, f"{page}cancel/")
    assert (state(order.pk), on_hand()[0]) == ("pending", 1)
    assert "is cancelled." in post(admin_client, f"{page}cancel/", {})
    assert (state(order.pk), on_hand()[0]) == ("cancelled", 3)
    assert LogEntry.objects.get().change_message == "Cancelled."
    assert offered(admin_client, page) == set()
    assert "had been cancelled before" in post(admin_client, f"{page}cancel/", {})
    assert on_hand()[0] == 3
    assert_conserved()


def test_a_paid_order_is_not_cancelled(admin_client: Client) -> None:
    order = bought(on_sale({"a": 3}), a=1)
    Order.objects.update(state="paid")
    assert offered(admin_client, f"{ORDERS}{order.pk}/") == {"refund-items"}
    assert "The order is paid." in post(admin_client, f"{ORDERS}{order.pk}/cancel/", {})
    assert state(order.pk) == "paid"


def test_a_paused_sale_is_closed_too(admin_client: Client) -> None:
    offer = on_sale({"a": 3})
    lifecycle.pause(offer.sale)
    post(admin_client, f"{SALES}{offer.sale}/close/", {})
    assert Sale.objects.get().closes_at <= timezone.now()
