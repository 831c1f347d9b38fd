"""Buying in Chromium: the Buy button says each state, and why an order was refused. The pages of guests."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from shop.models import Guest, Order, OrderItem, Sale, SaleItem
from shop.orders.customer_changes import pay_order
from shop.orders.queued import save_queued
from shop.orders.returns import return_order
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from tests.browser import IN_BROWSER
from tests.factories import OnSale, new_customer, orders_in
from tests.shop.browser_support import (
    EN,
    ORDERS,
    SAYS,
    Enter,
    assert_accessible,
    at_the_button,
    button,
    crowd,
    for_each_reader,
    held_press,
    opened,
    prepared,
    shows,
    sold,
)
from tests.shop.conftest import buy
from tests.shop.waiting_support import set_rate

OLDEST_FIGURES = 5500
"""Maximum age of figures in milliseconds: a web server caches 2 s, a proxy 1 s, and a page polls within 2.5 s."""

pytestmark = IN_BROWSER

# Buying


def test_a_press_of_the_keyboard_buys(enter: Enter) -> None:
    page, _ = at_the_button(enter, limit=2)
    page.locator(".buying input[name=quantity]").fill("2")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shows(page, EN["yours"])
    expect(button(page)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/orders/*/")
    assert list(OrderItem.objects.values_list("quantity", "price")) == [(2, Decimal("9.90"))]


@for_each_reader
def test_the_button_says_each_state_in_both_languages(enter: Enter, language: str, viewport: dict[str, int]) -> None:
    says = SAYS[language]
    customer, offer, address = prepared(limit=2, opens=timedelta(minutes=1))
    preheat_sale(offer.sale)
    context = enter(customer, language, viewport=viewport)

    def check(page: Page, name: str, who: str = "") -> None:
        shows(page, says[name])
        assert_accessible(page, f"button {name}{who}", full_page=False)

    visitor = opened(enter(None, language, viewport=viewport), address)
    page = opened(context, address)
    check(page, "coming")
    Sale.objects.filter(pk=offer.sale).update(opens_at=Now())
    check(page, "buy")
    check(visitor, "log in")
    lifecycle.pause(offer.sale)
    check(page, "paused")
    check(visitor, "paused", " logged out")
    expect(visitor.locator(".note")).to_contain_text(says["paused note"])
    expect(visitor.locator(".buying a.quiet")).to_have_text(says["log in"])
    lifecycle.resume(offer.sale)
    shows(page, says["buy"])
    shows(visitor, says["log in"])

    order = held_press(page)
    check(page, "buying")
    order.abort()
    check(page, "offline")
    context.unroute(ORDERS)
    check(page, "yours")

    other = new_customer()
    page = opened(enter(other, language, viewport=viewport), address)
    buy(offer, other, **dict.fromkeys(offer.products, 2))
    shows(page, says["buy"])
    button(page).click()
    check(page, "limit")

    third = new_customer()
    page = opened(enter(third, language, viewport=viewport), address)
    shows(page, says["buy"])
    SaleItem.objects.filter(sale=offer.sale).update(price=Decimal("12.00"))
    check(page, "price")
    buy(OnSale(offer.sale, offer.products, "12.00"), **dict.fromkeys(offer.products, 2))
    check(page, "sold out")
    check(visitor, "sold out", " logged out")
    expect(visitor.locator(".note")).to_contain_text(says["taken note"])
    expect(visitor.locator(".left")).to_have_text(says["sold out"])
    expect(visitor.locator(".buying a.button")).to_be_hidden()
    lifecycle.close(offer.sale)
    check(page, "over")


@for_each_reader
def test_the_button_says_the_place_in_the_queue_and_in_the_waiting_room(
    enter: Enter, language: str, viewport: dict[str, int]
) -> None:
    says = SAYS[language]

    def check(page: Page, name: str) -> None:
        shows(page, says[name])
        assert_accessible(page, f"button {name}")

    page, _ = at_the_button(enter, language, viewport=viewport, strategy="lua-queue")
    button(page).click()
    check(page, "queued")
    expect(button(page)).to_have_attribute("aria-disabled", "true")
    page.reload()
    shows(page, says["queued"])
    assert orders_in() == 0
    save_queued()
    shows(page, says["yours"])

    customer, offer, address = prepared()
    set_rate(offer, 1)
    crowd(offer, 100)
    page = opened(enter(customer, language, viewport=viewport), address)
    check(page, "enter")
    button(page).click()
    page.get_by_role("button", name=says["enter"]).click()
    page.goto(address)
    check(page, "place")
    expect(button(page)).to_have_attribute("aria-disabled", "true")
    assert orders_in() == 1, "the one from the queue"


# Refusals


def test_what_is_sold_out_is_said_at_once_and_without_a_press(enter: Enter) -> None:
    pressed, offer = at_the_button(enter, units=1)
    watching = opened(enter(new_customer()), pressed.url)
    shows(watching, EN["buy"])
    expect(watching.locator(".left")).to_have_text("1 left")
    buy(offer, **dict.fromkeys(offer.products, 1))
    button(pressed).click()
    for page in (pressed, watching):
        shows(page, EN["sold out"])
        expect(page.locator(".note")).to_contain_text("An order that is not paid within 15 minutes returns its units.")
        expect(button(page)).to_have_attribute("aria-disabled", "true")
    assert orders_in() == 1


@pytest.mark.parametrize(
    ("language", "fewer"), [("en", "Fewer than 100 are left. Choose"), ("zh-hans", "剩余不足 100 件")]
)
def test_a_sale_that_hides_the_number_left_says_only_that_fewer_are_left(
    enter: Enter, language: str, fewer: str
) -> None:
    customer, offer, address = prepared(units=37)
    Sale.objects.filter(pk=offer.sale).update(stock_shown="hidden")
    page = opened(enter(customer, language), address)
    shows(page, SAYS[language]["buy"])
    page.locator(".buying input[name=quantity]").fill("100")
    with page.expect_response(ORDERS) as refused:
        button(page).click()
    assert "left" not in refused.value.json()
    expect(page.locator(".note")).to_contain_text(fewer)
    expect(page.locator(".note")).not_to_contain_text("37")
    shows(page, SAYS[language]["buy"])
    page.locator(".buying input[name=quantity]").fill("37")
    button(page).click()
    shows(page, SAYS[language]["yours"])


def test_figures_from_before_the_refusal_do_not_say_buy_again(enter: Enter) -> None:
    """Figures older than a refusal do not show "Buy" again. Control: figures that may be newer show it."""
    customer, offer, address = prepared(units=1)
    page = enter(customer).new_page()
    page.clock.install()
    page.goto(address)
    shows(page, EN["buy"])
    expect(page.locator(".left")).to_have_text("1 left")
    old = page.request.get(f"{address}now.json").json()
    page.route("**/now.json", lambda route: route.fulfill(json=old))
    buy(offer, **dict.fromkeys(offer.products, 1))
    page.clock.pause_at(page.evaluate("Date.now() / 1000 + 1"))
    button(page).click()
    shows(page, EN["sold out"])
    expect(page.locator(".left")).to_have_text("Sold out")
    page.clock.run_for(OLDEST_FIGURES)
    shows(page, EN["sold out"])
    page.clock.run_for(1000)
    shows(page, EN["buy"])


def test_a_paid_order_that_was_refunded_is_not_called_paid(enter: Enter) -> None:
    customer, offer, address = prepared(units=1)
    page = opened(enter(customer), address)
    button(page).click()
    shows(page, EN["yours"])
    order = Order.objects.get().pk
    pay_order(order, customer=customer)
    page.reload()
    shows(page, "Yours. Paid")
    return_order(order, by=new_customer())
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    shows(page, EN["buy"])
    expect(page.locator(".note")).to_have_text("The order was refunded, and its units are for sale again.")
    expect(page.locator(".buying a.quiet")).to_have_attribute("href", f"/orders/{order}/")
    buy(offer, **dict.fromkeys(offer.products, 1))
    shows(page, EN["sold out"])
    expect(page.locator(".buying a.quiet")).to_have_text("See the order")


def test_at_the_limit_the_page_says_so_and_leads_to_the_orders(enter: Enter) -> None:
    customer, offer, address = prepared(limit=1)
    page = opened(enter(customer), address)
    shows(page, EN["buy"])
    buy(offer, customer, **dict.fromkeys(offer.products, 1))
    button(page).click()
    shows(page, EN["limit"])
    expect(page.locator(".note")).to_have_text(
        "At most 1 for each customer in this sale; you have bought 1. Nothing was bought now."
    )
    expect(page.get_by_role("link", name="My orders").last).to_have_attribute("href", "/orders/")
    assert orders_in() == 1


def test_a_new_price_is_shown_and_asked_for(enter: Enter) -> None:
    page, _ = at_the_button(enter, price="9.90")
    page.context.route("**/now.json", lambda route: route.abort())  # Keep the new price from the page.
    SaleItem.objects.update(price=Decimal("12.00"))
    button(page).click()
    shows(page, EN["price"])
    expect(page.locator(".note")).to_contain_text("The price is now 12.00 EUR, not 9.90 EUR. Nothing was bought.")
    assert orders_in() == 0
    button(page).click()
    shows(page, EN["yours"])
    assert list(OrderItem.objects.values_list("price", flat=True)) == [Decimal("12.00")]


# Guests

ADDRESS = "gast@example.com"
WORDS = {
    "en": {"guest": "Buy as a guest", "account": "Make an account"},
    "zh-hans": {"guest": "以游客身份购买", "account": "注册账号"},
}


def open_to_guests(*, guests: bool = True, **options: int) -> str:
    """Put a product on sale, for guests too if `guests`, and return the address of its page."""
    offer, address = sold(**options)
    Sale.objects.filter(pk=offer.sale).update(guest_checkout=guests)
    return address


@for_each_reader
def test_a_guest_buys_and_finds_each_page_in_their_language(
    enter: Enter, language: str, viewport: dict[str, int]
) -> None:
    says, words = SAYS[language], WORDS[language]
    context = enter(None, language, viewport=viewport)
    page = opened(context, open_to_guests(limit=1))

    def check(name: str) -> None:
        assert_accessible(page, f"guest {name}")

    shows(page, says["log in"])
    link = page.locator("[data-guest]")
    expect(link).to_have_text(words["guest"])
    check("sale")
    link.click()
    check("page")
    page.locator("[name=email]").fill("gast@x")
    page.get_by_role("button", name=words["guest"]).click()
    expect(page.locator(".errorlist")).to_be_visible()
    check("wrong")
    page.locator("[name=email]").fill(ADDRESS)
    page.get_by_role("button", name=words["guest"]).click()
    shows(page, says["buy"])
    expect(link).to_be_hidden()
    button(page).click()
    shows(page, says["yours"])
    second = opened(context, page.url)
    shows(second, says["yours"])
    page.reload()
    shows(page, says["yours"])
    assert (orders_in(), Guest.objects.get().email) == (1, ADDRESS)
    button(page).click()
    page.wait_for_url("**/orders/*/")
    expect(page.locator(".number")).to_contain_text(ADDRESS)
    check("order")
    page.goto("/account/")
    check("account")
    page.get_by_role("link", name=words["account"]).click()
    check("making")

    other = opened(context, open_to_guests(guests=False))
    shows(other, words["account"])
    expect(other.locator("[data-guest]")).to_have_count(0)
    page = other
    check("elsewhere")
    page.goto("/account/logout/")
    page.locator("main button").click()
    page.goto(f"{open_to_guests()}guest/")
    check("again")
