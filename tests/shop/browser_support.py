"""Helpers for tests of the storefront in Chromium: customers' browsers, sales, and texts of the Buy button."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Route, expect

from shop.models import Product, Sale
from shop.sales import offers
from tests.browser import DESKTOP, PHONE, take_screenshot
from tests.factories import OnSale, new_customer, on_sale
from tests.shop.payment_support import login_cookies
from tests.shop.waiting_support import enter_all
from tests.shop.web_server import CHECKOUT

AXE = CHECKOUT / "tests" / "lab" / "vendor" / "axe.min.js"
ORDERS, TOKEN = "**/api/orders/", "**/account/token/"
FAILED = ("Failed to load resource",)
"""The beginning of the browser's own message about a response with an error status, and about a lost connection."""

TEXTS = {
    "coming": ("Opens in ", "后开售"),
    "buy": ("Buy", "购买"),
    "buying": ("Buying…", "正在下单……"),
    "queued": ("In the queue, place 1", "排队中，第 1 位"),
    "yours": ("Yours. 14:5", "抢到了，剩余付款时间 14:5"),
    "paused": ("Paused", "已暂停"),
    "sold out": ("Sold out", "售罄"),
    "limit": ("Limit reached", "已达限购数量"),
    "price": ("Buy for 12.00 EUR", "以 12.00 EUR 购买"),
    "offline": ("No connection", "网络已断开"),
    "log in": ("Log in to buy", "登录后购买"),
    "over": ("The sale is over", "活动已结束"),
    "paused note": ("The shop has paused the sale.", "商店已暂停本场活动。"),
    "taken note": ("All units are taken.", "全部售罄。"),
    "enter": ("Enter the waiting room", "进入等候室"),
    "place": ("You are number 101", "您是第 101 位"),
    "nothing lost": (
        "No connection: nothing is lost. The order goes on by itself.",
        "网络已断开，但什么都不会丢。恢复后订单会自动继续。",
    ),
}


def by_language(texts: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Return the English and the Chinese column of a table of texts."""
    return {
        language: {name: both[column] for name, both in texts.items()}
        for column, language in enumerate(("en", "zh-hans"))
    }


SAYS = by_language(TEXTS)
EN = SAYS["en"]

READERS = [
    pytest.param(language, viewport, id=f"{language}-{name}")
    for language in SAYS
    for name, viewport in (("phone", PHONE), ("desktop", DESKTOP))
]
for_each_reader = pytest.mark.parametrize(("language", "viewport"), READERS)
"""Runs a test in both languages, at the width of a phone and of a desktop."""

Enter = Callable[..., BrowserContext]


@contextmanager
def entering(browser: Browser, address: str) -> Iterator[Enter]:
    """Yield a function that opens a browser. At the end, no page may have failed or written to its console.

    The function ignores console messages with a beginning in `ignored`, except about a missing static file. Its
    `complaints` are the other messages.
    """
    complaints: list[str] = []
    contexts = []

    def entered(
        customer: int | None = None, language: str = "en", *, ignored: tuple[str, ...] = FAILED, **options: Any
    ) -> BrowserContext:
        context = browser.new_context(**{"base_url": address, "locale": language, "viewport": PHONE, **options})
        contexts.append(context)
        context.set_default_timeout(20_000)
        if customer is not None:
            context.add_cookies(login_cookies(customer, address))

        def hear(message: ConsoleMessage) -> None:
            missing = "status of 404" in message.text and "/static/" in message.location["url"]
            if missing or not message.text.startswith(ignored):
                complaints.append(message.text)

        context.on("console", hear)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        return context

    entered.complaints = complaints
    yield entered
    for context in contexts:
        context.close()
    assert complaints == []


def sold(**options: Any) -> tuple[OnSale, str]:
    """Put a new product on sale. Return the sale and the address of its page."""
    units = options.pop("units", 5)
    # Use a new sku, because web servers remember which skus were sold out a moment ago.
    sku = f"product {new_customer()}"
    offer = on_sale({sku: units}, **options)
    texts = {"name": "Mechanical keyboard", "description": "Hot-swappable, with a knob."}
    Product.objects.filter(sku=sku).update(**texts, picture="/static/shop/products/keyboard.svg")
    slug = f"sale-{offer.sale}"
    Sale.objects.filter(pk=offer.sale).update(slug=slug, name="Tonight only")
    return offer, f"/sales/{slug}/"


def prepared(**options: Any) -> tuple[int, OnSale, str]:
    """Return a customer, a sale, and the address of its page."""
    return (new_customer(), *sold(**options))


def button(page: Page) -> Locator:
    """Return the button or link that tells the buyer what they can do, or why they cannot buy."""
    return page.locator(".buying .button:visible:not(.quiet)").first


def opened(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.goto(address)
    return page


def at_the_button(enter: Enter, language: str = "en", *, script: str = "", **options: Any) -> tuple[Page, OnSale]:
    """Open the page of a new sale as a new customer, who can buy now.

    Args:
        script: runs in each page of the browser before its own scripts.
        options: those of the sale, and `viewport`.
    """
    viewport = options.pop("viewport", PHONE)
    customer, offer, address = prepared(**options)
    context = enter(customer, language, viewport=viewport)
    if script:
        context.add_init_script(script)
    page = opened(context, address)
    shows(page, SAYS[language]["buy"])
    return page, offer


def crowd(offer: OnSale, count: int) -> None:
    """Let so many other customers enter the waiting room of a sale."""
    read = offers.get(offer.sale)
    assert read is not None
    enter_all(read, range(100_001, 100_001 + count))


def shows(page: Page, text: str) -> None:
    """Wait until the script of the page shows a text on the button.

    Before that, the page shows the button of the form that buys without a script.
    """
    expect(page.locator(".product[data-state]").first).to_be_attached()
    expect(button(page)).to_contain_text(text)


def assert_accessible(page: Page, name: str = "", *, full_page: bool = True) -> None:
    """Check that axe reports nothing, and that the page is not wider than the screen.

    Args:
        name, full_page: those of the picture (see `take_screenshot`); without a name, there is none.
    """
    if name:
        take_screenshot(page, name, full_page=full_page)
    found = found_by_axe(page)
    assert found == {}, f"{page.url}: {found}"
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, f"{page.url} is too wide"


def found_by_axe(page: Page) -> dict[str, list[Any]]:
    """Return the places in a page where it breaks a rule of axe, by the name of the rule."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    violations = page.evaluate("axe.run()")["violations"]
    return {rule["id"]: [node["target"] for node in rule["nodes"]] for rule in violations}


def held_press(page: Page) -> Route:
    """Press Buy, and return its request, which the shop does not have yet."""
    held: list[Route] = []
    page.context.route(ORDERS, lambda route: held.append(route))
    button(page).click()
    while not held:
        page.wait_for_timeout(20)
    return held[0]


def orders_of(context: BrowserContext, header: str = "idempotency-key") -> list[str]:
    """Return a list that collects a header of each order request, by default its key."""
    found: list[str] = []
    context.on("request", lambda request: request.method == "POST" and found.append(request.headers[header]))
    return found


def requests_of(pages: BrowserContext | Page, end: str) -> list[str]:
    """Return a list that collects the addresses of requests that end with `end`."""
    found: list[str] = []
    pages.on("request", lambda request: request.url.endswith(end) and found.append(request.url))
    return found
