"""Buying in Chromium from a real web server: one click makes one order, whatever fails on the way."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect, sync_playwright

from shop import log_context
from shop.models import Order, OrderItem, Product, Sale, SaleItem
from shop.orders.customer_changes import pay_order
from shop.orders.queued import save_queued
from shop.orders.returns import return_order
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from tests.browser import launch, needs_chromium
from tests.factories import OnSale, new_customer, on_sale, orders_in
from tests.shop.conftest import buy
from tests.shop.web_server import CHECKOUT, web_server
from tests.waiting import wait_for

AXE = CHECKOUT / "tests" / "lab" / "vendor" / "axe.min.js"
STATIC = CHECKOUT / "shop" / "static" / "shop"
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
ORDERS, TOKEN = "**/api/orders/", "**/account/token/"
MOST_BYTES = 60_000
OLDEST_FIGURES = 5500
"""Maximum age of figures in milliseconds: a web server caches 2 s, a proxy 1 s, and a page polls within 2.5 s."""

SAYS = {
    "en": {
        "coming": "Opens in ",
        "buy": "Buy",
        "buying": "Buying…",
        "queued": "In the queue, place 1",
        "yours": "Yours. 14:5",
        "paused": "Paused",
        "sold out": "Sold out",
        "limit": "Limit reached",
        "price": "Buy for 12.00 EUR",
        "offline": "No connection",
        "log in": "Log in to buy",
        "over": "The sale is over",
    },
    "zh-hans": {
        "coming": "后开售",
        "buy": "购买",
        "buying": "正在下单……",
        "queued": "排队中，第 1 位",
        "yours": "抢到了，剩余付款时间 14:5",
        "paused": "已暂停",
        "sold out": "售罄",
        "limit": "已达限购数量",
        "price": "以 12.00 EUR 购买",
        "offline": "网络已断开",
        "log in": "登录后购买",
        "over": "活动已结束",
    },
}
EN = SAYS["en"]

FORGETFUL = """
    const open = IDBFactory.prototype.open;
    IDBFactory.prototype.open = function (name, version) { return open.call(this, name + Math.random(), version); };
"""
"""For negative controls: a script that makes each page lose its stored data."""

SHIFTS = """
    window.shifts = [];
    new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((each) => each.value)))
        .observe({ type: "layout-shift", buffered: true });
"""

HOUR_SLOW = """
    Object.defineProperty(performance, "timeOrigin", { value: performance.timeOrigin - 3_600_000 });
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis"),
    needs_chromium,
]

Enter = Callable[..., BrowserContext]


@pytest.fixture(scope="module")
def port(django_db_setup: None) -> Iterator[int]:
    """Run the shop's web server on the test database."""
    with web_server() as (port, _):
        yield port


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium once, outside Django's async check: Playwright's event loop keeps Django from the database."""
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def enter(port: int, browser: Browser) -> Iterator[Enter]:
    """Open browsers of customers. When the test ends, no page may have written to its console."""
    complaints: list[str] = []
    contexts = []
    address = f"http://127.0.0.1:{port}"

    def entered(customer: int | None = None, language: str = "en", **options: Any) -> BrowserContext:
        context = browser.new_context(**{"base_url": address, "locale": language, "viewport": PHONE, **options})
        contexts.append(context)
        context.set_default_timeout(20_000)
        if customer is not None:
            session = session_of(customer)
            context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": address}])
        # Ignore the browser's own message about each response with an error status.
        context.on(
            "console",
            lambda message: message.text.startswith("Failed to load resource") or complaints.append(message.text),
        )
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        return context

    yield entered
    for context in contexts:
        context.close()
    assert complaints == []


def session_of(customer: int) -> str:
    client = Client()
    client.force_login(User.objects.get(pk=customer))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def sold(**options: Any) -> tuple[OnSale, str]:
    """Put a new product on sale. Return the sale and the address of its page."""
    units = options.pop("units", 5)
    # Use a new sku, because web servers remember which ones were sold out a moment ago.
    sku = f"product {new_customer()}"
    offer = on_sale({sku: units}, **options)
    Product.objects.filter(sku=sku).update(
        name="Mechanical keyboard", description="Hot-swappable, with a knob.", picture="/static/shop/icon.svg"
    )
    slug = f"sale-{offer.sale}"
    Sale.objects.filter(pk=offer.sale).update(slug=slug, name="Tonight only")
    return offer, f"/sales/{slug}/"


def prepared(**options: Any) -> tuple[int, OnSale, str]:
    """Return a customer, a sale, and the address of its page."""
    return (new_customer(), *sold(**options))


def button(page: Page) -> Locator:
    """Return the button or link that tells the buyer what they can do, or why they cannot buy."""
    return page.locator(".buying .button:visible:not(.quiet)").first


def state(page: Page) -> Locator:
    return page.locator(".product")


def opened(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.goto(address)
    return page


def shows(page: Page, text: str) -> None:
    expect(button(page)).to_contain_text(text, timeout=20_000)


def assert_accessible(page: Page) -> None:
    """Check that axe reports nothing, and that the page is not wider than the screen."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    violations = page.evaluate("axe.run()")["violations"]
    assert [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0


# Buying


def test_a_press_of_the_keyboard_buys(enter: Enter) -> None:
    customer, _, address = prepared(limit=2)
    page = opened(enter(customer), address)
    shows(page, EN["buy"])
    page.locator(".buying input[name=quantity]").fill("2")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shows(page, EN["yours"])
    expect(button(page)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/orders/*/")
    bought = list(OrderItem.objects.values_list("quantity", "price", "order__customer"))
    assert bought == [(2, Decimal("9.90"), customer)]


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("language", SAYS)
def test_the_button_says_each_state_in_both_languages(
    enter: Enter, language: str, viewport: dict[str, int], tmp_path: Path
) -> None:
    """The button shows each state in both languages. Screenshots are in `SCREENSHOTS`, if that is set."""
    says, folder = SAYS[language], Path(os.environ.get("SCREENSHOTS", tmp_path))
    customer, offer, address = prepared(limit=2, opens=timedelta(minutes=1))
    preheat_sale(offer.sale)
    context = enter(customer, language, viewport=viewport)

    def check(page: Page, name: str, who: str = "") -> None:
        shows(page, says[name])
        assert_accessible(page)
        page.screenshot(path=folder / f"{name}{who}-{language}-{viewport['width']}.png")

    visitor = opened(enter(None, language, viewport=viewport), address)
    page = opened(context, address)
    check(page, "coming")
    Sale.objects.filter(pk=offer.sale).update(opens_at=Now())
    check(page, "buy")
    check(visitor, "log in")
    lifecycle.pause(offer.sale)
    check(page, "paused")
    check(visitor, "paused", " logged out")
    lifecycle.resume(offer.sale)
    shows(page, says["buy"])

    held: list[Route] = []
    context.route(ORDERS, lambda route: held.append(route))
    button(page).click()
    check(page, "buying")
    wait_for_route(page, held).abort()
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
    buy(offer, **dict.fromkeys(offer.products, 2))
    check(page, "sold out")
    check(visitor, "sold out", " logged out")
    lifecycle.close(offer.sale)
    check(page, "over")


def wait_for_route(page: Page, held: list[Route]) -> Route:
    """Wait for the first held request, and return it."""
    while not held:
        page.wait_for_timeout(20)
    return held[0]


# One press is one order


def orders_of(context: BrowserContext) -> list[str]:
    """Return a list that collects the idempotency key of each order request."""
    keys: list[str] = []
    context.on("request", lambda request: request.method == "POST" and keys.append(request.headers["idempotency-key"]))
    return keys


def traces_of(context: BrowserContext) -> list[str]:
    """Return a list that collects the `traceparent` of each order request."""
    traces: list[str] = []
    context.on("request", lambda request: request.method == "POST" and traces.append(request.headers["traceparent"]))
    return traces


@pytest.mark.parametrize("kept", [True, False])
def test_a_reload_after_a_lost_answer_buys_once(enter: Enter, *, kept: bool) -> None:
    """After a lost response, a reload does not buy twice. Negative control: a page that forgets its key buys again."""
    customer, _, address = prepared()
    context = enter(customer)
    if not kept:
        context.add_init_script(FORGETFUL)
    keys, traces = orders_of(context), traces_of(context)
    page = opened(context, address)
    shows(page, EN["buy"])
    context.route(ORDERS, lose_answer)
    button(page).click()
    shows(page, EN["offline"])
    assert orders_in() == 1
    page.reload()
    shows(page, EN["offline"] if kept else EN["buy"])
    context.unroute(ORDERS)
    if not kept:
        button(page).click()
    shows(page, EN["yours"])
    assert (orders_in(), len(set(keys))) == ((1, 1) if kept else (2, 2))
    assert [log_context.trace_of(trace) for trace in traces] == keys, "all attempts of one press are one trace"
    page.reload()
    shows(page, EN["yours"] if kept else EN["buy"])


def lose_answer(route: Route) -> None:
    """Send the request to the shop, and drop the response."""
    route.fetch()
    route.abort()


@pytest.mark.parametrize("kept", [True, False])
def test_two_tabs_buy_once(enter: Enter, *, kept: bool) -> None:
    """Two tabs buy once. Negative control: tabs that do not share the stored key buy once each."""
    customer, _, address = prepared()
    context = enter(customer)
    if not kept:
        context.add_init_script(FORGETFUL)
    keys = orders_of(context)
    first, second = opened(context, address), opened(context, address)
    for page in (first, second):
        shows(page, EN["buy"])
    held: list[Route] = []
    context.route(ORDERS, lambda route: held.append(route))
    # Click in both tabs at once, before either can know of the other.
    for page in (first, second):
        page.evaluate("setTimeout(() => document.querySelector('.buying button').click(), 200)")
    for page in (first, second):
        shows(page, EN["buying"])
    while len(held) < 2:
        first.wait_for_timeout(20)
    for route in held:
        route.continue_()
    context.unroute(ORDERS)
    for page in (first, second):
        shows(page, EN["yours"])
    assert (orders_in(), len(set(keys))) == ((1, 1) if kept else (2, 2))


def test_a_tab_that_is_opened_later_goes_on_with_the_press(enter: Enter) -> None:
    customer, _, address = prepared()
    context = enter(customer)
    keys = orders_of(context)
    first = opened(context, address)
    shows(first, EN["buy"])
    held: list[Route] = []
    context.route(ORDERS, lambda route: held.append(route))
    button(first).click()
    wait_for_route(first, held)
    first.close()
    context.unroute(ORDERS)
    second = opened(context, address)
    shows(second, EN["yours"])
    assert (orders_in(), len(set(keys))) == (1, 1)


def test_another_press_after_buying_is_another_order(enter: Enter) -> None:
    customer, _, address = prepared(limit=2)
    context = enter(customer)
    keys = orders_of(context)
    page = opened(context, address)
    for orders in (1, 2):
        page.get_by_role("button", name=re.compile("Buy")).click()
        expect(page.get_by_role("link", name=re.compile("Yours"))).to_be_visible(timeout=20_000)
        wait_for(lambda orders=orders: len(set(keys)) == orders)  # type: ignore[misc]
        shows(page, EN["yours"])
        assert orders_in() == orders


def test_without_a_connection_the_order_waits_and_goes_on_by_itself(enter: Enter) -> None:
    customer, _, address = prepared()
    context = enter(customer)
    keys = orders_of(context)
    page = opened(context, address)
    shows(page, EN["buy"])
    context.set_offline(True)
    button(page).click()
    shows(page, EN["offline"])
    expect(page.locator(".note")).to_have_text("No connection: nothing is lost. The order goes on by itself.")
    while len(keys) < 3:
        page.wait_for_timeout(50)
    assert orders_in() == 0
    context.set_offline(False)
    shows(page, EN["yours"])
    assert (orders_in(), len(set(keys))) == (1, 1)


def test_a_busy_shop_is_asked_again_with_the_same_key(enter: Enter) -> None:
    customer, _, address = prepared()
    context = enter(customer)
    keys = orders_of(context)
    answers = [(503, "busy", "1"), (409, "still-running", "1"), (429, "too-fast", "1"), (500, "internal", "")]

    def refuse(route: Route) -> None:
        status, slug, wait = answers.pop(0)
        headers = {"Retry-After": wait} if wait else {}
        route.fulfill(status=status, headers=headers, json={"type": f"/api/problems/{slug}/"})
        if not answers:
            context.unroute(ORDERS)

    page = opened(context, address)
    shows(page, EN["buy"])
    context.route(ORDERS, refuse)
    button(page).click()
    expect(page.locator(".note")).to_contain_text("The shop is busy.")
    shows(page, EN["yours"])
    assert (orders_in(), len(keys), len(set(keys))) == (1, 5, 1)


def test_a_token_that_has_ended_is_replaced(enter: Enter) -> None:
    customer, _, address = prepared()
    context = enter(customer)
    page = opened(context, address)
    shows(page, EN["buy"])
    context.route(ORDERS, lambda route: (route.fulfill(status=401, json={"type": "x"}), context.unroute(ORDERS)))
    with page.expect_response(TOKEN):
        button(page).click()
    shows(page, EN["yours"])
    assert orders_in() == 1


def test_who_has_logged_out_logs_in_and_the_order_goes_on(enter: Enter) -> None:
    customer, _, address = prepared()
    context = enter(customer)
    page = opened(context, address)
    shows(page, EN["buy"])
    cookies = context.cookies()
    context.clear_cookies()
    context.route(ORDERS, lambda route: (route.fulfill(status=401, json={"type": "x"}), context.unroute(ORDERS)))
    button(page).click()
    shows(page, EN["log in"])
    assert (button(page).get_attribute("href"), orders_in()) == (f"/account/login/?next={address}", 0)
    context.add_cookies(cookies)  # type: ignore[arg-type]
    page.reload()
    shows(page, EN["yours"])
    assert orders_in() == 1


def test_a_queued_order_is_followed_until_it_is_saved(enter: Enter) -> None:
    customer, _, address = prepared(strategy="lua-queue")
    page = opened(enter(customer), address)
    shows(page, EN["buy"])
    button(page).click()
    shows(page, EN["queued"])
    page.reload()
    shows(page, EN["queued"])
    assert orders_in() == 0
    save_queued()
    shows(page, EN["yours"])
    assert orders_in() == 1


# Refusals


def test_what_is_sold_out_is_said_at_once_and_without_a_press(enter: Enter) -> None:
    (customer, offer, address), other = prepared(units=1), new_customer()
    pressed, watching = opened(enter(customer), address), opened(enter(other), address)
    for page in (pressed, watching):
        shows(page, EN["buy"])
    expect(watching.locator(".left")).to_have_text("1 left")
    buy(offer, **dict.fromkeys(offer.products, 1))
    button(pressed).click()
    for page in (pressed, watching):
        shows(page, EN["sold out"])
        expect(page.locator(".note")).to_contain_text("An order that is not paid within 15 minutes returns its units.")
        expect(button(page)).to_have_attribute("aria-disabled", "true")
    assert orders_in() == 1


def test_who_is_not_logged_in_reads_that_nothing_can_be_bought(enter: Enter) -> None:
    """A visitor who is not logged in sees that a sale is paused or sold out, where logging in would not help."""
    offer, address = sold(units=1)
    page = opened(enter(), address)
    shows(page, EN["log in"])
    lifecycle.pause(offer.sale)
    shows(page, EN["paused"])
    expect(page.locator(".note")).to_contain_text("The shop has paused the sale.")
    expect(page.locator(".buying a.quiet")).to_have_text(EN["log in"])
    lifecycle.resume(offer.sale)
    shows(page, EN["log in"])
    buy(offer, **dict.fromkeys(offer.products, 1))
    shows(page, EN["sold out"])
    expect(page.locator(".note")).to_contain_text("All units are taken.")
    expect(page.locator(".left")).to_have_text("Sold out")
    expect(page.locator(".buying a.button")).to_be_hidden()


def test_figures_from_before_the_refusal_do_not_say_buy_again(enter: Enter) -> None:
    """Figures older than a refusal do not show "Buy" again. Control: figures that may be newer do."""
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


@pytest.mark.parametrize("sent", [True, False])
def test_a_new_price_is_shown_and_asked_for(enter: Enter, *, sent: bool) -> None:
    """A new price is shown and needs another click.

    Negative control: an order without the shown price sells at the new one.
    """
    customer, offer, address = prepared(price="9.90")
    context = enter(customer)
    page = opened(context, address)
    shows(page, EN["buy"])
    context.route("**/now.json", lambda route: route.abort())  # The page must not hear of the new price.
    SaleItem.objects.filter(sale=offer.sale).update(price=Decimal("12.00"))
    if not sent:
        context.route(ORDERS, without_price)
        # Wait until the web server reads the price again, which it caches for a second.
        page.wait_for_timeout(1100)
    button(page).click()
    if sent:
        shows(page, EN["price"])
        expect(page.locator(".note")).to_contain_text("The price is now 12.00 EUR, not 9.90 EUR. Nothing was bought.")
        assert orders_in() == 0
        button(page).click()
    shows(page, EN["yours"])
    assert list(OrderItem.objects.values_list("price", flat=True)) == [Decimal("12.00")]


def without_price(route: Route) -> None:
    body = route.request.post_data_json
    assert body is not None
    for item in body["items"]:
        del item["price"]
    route.continue_(post_data=body)


# The opening


@pytest.mark.parametrize("reserved", [True, False])
def test_the_sale_opens_by_itself_and_nothing_moves(enter: Enter, *, reserved: bool) -> None:
    """The sale opens by itself, and nothing moves.

    Negative control: a page without reserved room for the sentence moves.
    """
    customer = new_customer()

    def two_products() -> str:
        offer = on_sale({f"a {customer}": 3, f"b {customer}": 3}, opens=timedelta(seconds=9))
        preheat_sale(offer.sale)
        return f"/sales/{Sale.objects.get(pk=offer.sale).slug}/"

    address = two_products()
    context = enter(customer, bypass_csp=not reserved)
    context.add_init_script(SHIFTS)
    keys = orders_of(context)
    page = opened(context, address)
    if not reserved:
        page.add_style_tag(content=".note { min-height: 0 !important; }")
    shows(page, EN["coming"])
    expect(button(page)).to_have_attribute("aria-disabled", "true")
    button(page).click(force=True)
    page.evaluate("window.shifts.length = 0")
    shows(page, EN["buy"])
    expect(page.locator(".note").first).to_have_text("The sale is open.")
    page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    assert bool(page.evaluate("window.shifts.length")) is not reserved
    assert keys == []
    button(page).click()
    shows(page, EN["yours"])
    assert len(keys) == 1


@pytest.mark.parametrize("dated", [True, False])
def test_the_countdown_follows_the_clock_of_the_shop(enter: Enter, *, dated: bool) -> None:
    """The countdown follows the shop's clock, while the browser's is an hour slow.

    Negative control: undated responses.
    """
    customer, _, address = prepared(opens=timedelta(minutes=30))
    context = enter(customer)
    context.add_init_script(HOUR_SLOW)
    if not dated:
        context.route("**/*.json", without_date)
        context.route(TOKEN, without_date)
    page = opened(context, address)
    shows(page, "Opens in 29:5" if dated else "Opens in 1:29:")


def without_date(route: Route) -> None:
    response = route.fetch()
    route.fulfill(response=response, headers={**response.headers, "date": ""})


def test_a_hidden_page_asks_nothing(enter: Enter) -> None:
    customer, _, address = prepared()
    context = enter(customer)
    page = opened(context, address)
    shows(page, EN["buy"])
    polls: list[str] = []
    context.on("request", lambda request: polls.append(request.url) if request.url.endswith("now.json") else None)
    page.wait_for_timeout(2600)
    assert polls
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.wait_for_timeout(2600)  # The next planned poll finds the page hidden.
    polls.clear()
    page.wait_for_timeout(2600)
    assert polls == []
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    while not polls:
        page.wait_for_timeout(20)


# Without JavaScript, and the weight of the page


def test_the_page_buys_without_scripts(enter: Enter) -> None:
    customer, _, address = prepared(limit=2)
    page = opened(enter(customer, java_script_enabled=False), address)
    page.locator(".buying input[name=quantity]").fill("2")
    page.get_by_role("button", name="Buy").click()
    expect(page.locator("input[name=quantity]")).to_have_value("2")
    page.get_by_role("button", name="Buy").click()
    page.wait_for_url("**/orders/*/")
    page.go_back()
    page.get_by_role("button", name="Buy").click()
    page.wait_for_url("**/orders/*/")
    assert list(OrderItem.objects.values_list("quantity", flat=True)) == [2]


def test_who_has_not_logged_in_is_led_there(enter: Enter) -> None:
    _, _, address = prepared()
    page = opened(enter(java_script_enabled=False), address)
    page.get_by_role("button", name="Buy").click()
    page.wait_for_url(re.compile(r"/account/login/\?next=/sales/.*/buy/"))


def test_the_page_with_its_picture_is_light(enter: Enter) -> None:
    customer, _, address = prepared()
    pictures = sorted((STATIC / "products").glob("*"), key=lambda file: file.stat().st_size)
    if pictures:
        picture = f"/static/shop/products/{pictures[-1].name}"
        Product.objects.update(picture=picture)
    context = enter(customer)
    bodies: dict[str, bytes] = {}
    context.on("requestfinished", lambda request: bodies.setdefault(request.url, request.response().body()))
    page = opened(context, address)
    page.wait_for_load_state("networkidle")
    shows(page, EN["buy"])
    sizes = {re.sub(".*/", "", url) or "page": len(gzip.compress(body)) for url, body in bodies.items()}
    assert {"page", "base.css", "pages.css", "sale.js", "now.json"} <= set(sizes)
    assert sum(sizes.values()) <= MOST_BYTES, sizes
