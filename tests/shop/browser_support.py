"""Helpers for tests of the storefront in Chromium: a web server, customers' browsers, and texts of the Buy button."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect, sync_playwright

from shop.models import Product, Sale
from tests.browser import DESKTOP, PHONE, launch
from tests.factories import OnSale, new_customer, on_sale
from tests.shop.payment_support import login_cookies
from tests.shop.web_server import CHECKOUT, web_server

AXE = CHECKOUT / "tests" / "lab" / "vendor" / "axe.min.js"
ORDERS, TOKEN = "**/api/orders/", "**/account/token/"

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
    "enter": ("Enter the waiting room", "进入等候室"),
    "place": ("You are number 101", "您是第 101 位"),
    "nothing lost": (
        "No connection: nothing is lost. The order goes on by itself.",
        "网络已断开，但什么都不会丢。恢复后订单会自动继续。",
    ),
}
EN, ZH = ({name: texts[column] for name, texts in TEXTS.items()} for column in (0, 1))
SAYS = {"en": EN, "zh-hans": ZH}

READERS = [
    pytest.param(language, viewport, id=f"{language}-{name}")
    for language in SAYS
    for name, viewport in (("phone", PHONE), ("desktop", DESKTOP))
]
for_each_reader = pytest.mark.parametrize(("language", "viewport"), READERS)
"""Runs a test in both languages, at the width of a phone and of a desktop."""

Enter = Callable[..., BrowserContext]


@pytest.fixture(scope="module")
def port(django_db_setup: None) -> Iterator[int]:
    """Run the shop's web server on the test database."""
    with web_server() as (port, _):
        yield port


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium once for all tests of a module.

    Playwright runs an event loop in this thread, so Django would refuse to query the database.
    DJANGO_ALLOW_ASYNC_UNSAFE turns this check off.
    """
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def enter(port: int, browser: Browser) -> Iterator[Enter]:
    """Return a function that opens a browser. At the end, no page may have failed or written to its console."""
    complaints: list[str] = []
    contexts = []
    address = f"http://127.0.0.1:{port}"

    def entered(customer: int | None = None, language: str = "en", **options: Any) -> BrowserContext:
        context = browser.new_context(**{"base_url": address, "locale": language, "viewport": PHONE, **options})
        contexts.append(context)
        context.set_default_timeout(20_000)
        if customer is not None:
            context.add_cookies(login_cookies(customer, address))
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


def state(page: Page) -> Locator:
    return page.locator(".product")


def opened(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.goto(address)
    return page


def shows(page: Page, text: str) -> None:
    """Wait until the script of the page shows a text on the button.

    Before that, the page shows the button of the form that buys without a script.
    """
    expect(page.locator(".product[data-state]").first).to_be_attached(timeout=20_000)
    expect(button(page)).to_contain_text(text, timeout=20_000)


def assert_accessible(page: Page) -> None:
    """Check that axe reports nothing, and that the page is not wider than the screen."""
    found = found_by_axe(page)
    assert found == {}, f"{page.url}: {found}"
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, f"{page.url} is too wide"


def found_by_axe(page: Page) -> dict[str, list[Any]]:
    """Return the places in a page where it breaks a rule of axe, by the name of the rule."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    violations = page.evaluate("axe.run()")["violations"]
    return {rule["id"]: [node["target"] for node in rule["nodes"]] for rule in violations}


def wait_for_route(page: Page, held: list[Route]) -> Route:
    """Wait for the first held request, and return it."""
    while not held:
        page.wait_for_timeout(20)
    return held[0]


def orders_of(context: BrowserContext) -> list[str]:
    """Return a list that collects the idempotency key of each order request."""
    keys: list[str] = []
    context.on("request", lambda request: request.method == "POST" and keys.append(request.headers["idempotency-key"]))
    return keys
