"""A sale's page in Chromium: its first view without scripts, its weight, and its opening by the shop's clock."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from shop.models import Product, Sale
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from tests.browser import IN_BROWSER
from tests.factories import OnSale, new_customer, on_sale
from tests.shop.browser_support import (
    EN,
    ORDERS,
    SAYS,
    TOKEN,
    Enter,
    at_the_button,
    button,
    for_each_reader,
    opened,
    orders_of,
    prepared,
    requests_of,
    shows,
)
from tests.shop.conftest import buy
from tests.shop.web_server import CHECKOUT
from tests.waiting import wait_for

pytestmark = IN_BROWSER

SHIFTS = """
    window.shifts = [];
    new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((each) => each.value)))
        .observe({ type: "layout-shift", buffered: true });
"""

HOUR_SLOW = """
    Object.defineProperty(performance, "timeOrigin", { value: performance.timeOrigin - 3_600_000 });
"""


PRESSES = """
    setInterval(() => {
        const button = document.querySelector(".buying button[aria-disabled=false]");
        if (!button) return;
        window.pressed ??= performance.timeOrigin + performance.now();
        button.click();
    }, 5);
"""
"""A script that presses Buy as soon as the button is enabled, and stores the time."""

OPENING = """
    import("/static/shop/asking.js").then(({ clock, local }) => {
        clock.read = () => {};
        return Date.parse(document.querySelector("[data-shown=opens_at]").dateTime) - clock.now() + local();
    })
"""
"""Returns the opening by the browser's clock, in milliseconds. After that, no response sets the page's clock."""

KNOWN = "import('/static/shop/visit.js').then(({ visit }) => Boolean(visit.login && visit.sale))"
"""Returns whether the page knows its sale and its customer."""

RENDER = 200
"""Milliseconds between two checks of the clock by the page."""


@pytest.mark.parametrize("reserved", [True, False])
def test_the_sale_opens_by_itself_and_nothing_moves(enter: Enter, *, reserved: bool) -> None:
    """Negative control: a page without reserved room for the sentence moves."""
    customer = new_customer()
    offer = on_sale({f"a {customer}": 3, f"b {customer}": 3}, opens=timedelta(seconds=9))
    preheat_sale(offer.sale)
    context = enter(customer, bypass_csp=not reserved)
    context.add_init_script(SHIFTS)
    keys = orders_of(context)
    page = opened(context, f"/sales/{Sale.objects.get(pk=offer.sale).slug}/")
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
    """The browser's clock is an hour slow. Negative control: responses without a date."""
    customer, _, address = prepared(opens=timedelta(minutes=30))
    context = enter(customer)
    context.add_init_script(HOUR_SLOW)
    if not dated:
        context.route("**/*.json", without_date)
        context.route(TOKEN, without_date)
    page = opened(context, address)
    # The difference is an hour, so leave a busy machine a minute to open the page.
    shows(page, "Opens in 29:" if dated else "Opens in 1:29:")


def without_date(route: Route) -> None:
    response = route.fetch()
    route.fulfill(response=response, headers={**response.headers, "date": ""})


def test_a_hidden_page_asks_nothing(enter: Enter) -> None:
    page, _ = at_the_button(enter)
    polls = requests_of(page, "now.json")
    with page.expect_request("**/now.json"):
        pass  # A page that is not hidden asks.
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.wait_for_timeout(2600)  # The next planned poll finds the page hidden.
    polls.clear()
    page.wait_for_timeout(2600)
    assert polls == []
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    while not polls:
        page.wait_for_timeout(20)


# The pause after the opening


@pytest.mark.parametrize(("number", "pausing"), [(0, True), (0.999, True), (0.999, False)])
def test_an_order_is_sent_after_the_opening_and_a_random_pause(enter: Enter, number: float, pausing: bool) -> None:
    """The pause is up to a second, so that not all browsers send in the same millisecond.

    Negative control: a script without the pause sends at the opening.
    """
    customer, _, address = prepared(opens=timedelta(minutes=2))
    context = enter(customer)
    if not pausing:
        context.route("**/visit.js", without_pause)
    assert 0 <= opens_after(context, address, number) - 1000 * number * pausing <= RENDER + 5


def opens_after(context: BrowserContext, address: str, number: float) -> float:
    """Open a page of a sale, and return how many milliseconds after the opening it sends an order.

    The page's time stands still, except when this function moves it on. So the result does not depend on how fast the
    machine is.

    Args:
        number: result of each draw of the page, from 0 to 1.
    """
    page = context.new_page()
    page.clock.install()  # before the scripts, so that they use this clock, too
    page.add_init_script(f"Math.random = () => {number};")
    page.add_init_script(PRESSES)
    page.goto(address)
    wait_for(lambda: page.evaluate(KNOWN), "the page to know the sale")
    page.route(ORDERS, lambda route: route.abort())
    opening = float(page.evaluate(OPENING))
    page.clock.pause_at(opening / 1000 - 1)
    with page.expect_request(ORDERS):
        page.clock.run_for(1000 + 1000 + 2 * RENDER)
    return float(page.evaluate("window.pressed")) - opening


def without_pause(route: Route) -> None:
    response = route.fetch()
    script = response.text().replace("jitter = 1000 * Math.random()", "jitter = 0")
    assert script != response.text()
    route.fulfill(response=response, body=script)


# The first view


PICTURES = CHECKOUT / "shop" / "static" / "shop" / "products"
MOST_BYTES = 60_000

LEFT = {"en": ("5 left", "Sold out"), "zh-hans": ("剩余 5 件", "售罄")}
NOT_OPEN = {"en": "Not open yet", "zh-hans": "尚未开售"}


@for_each_reader
def test_the_first_view_needs_no_script(enter: Enter, language: str, viewport: dict[str, int]) -> None:
    says, (some, none) = SAYS[language], LEFT[language]
    states: dict[str, Callable[[OnSale], object]] = {
        says["buy"]: lambda _: None,
        says["paused"]: lambda offer: lifecycle.pause(offer.sale),
        says["sold out"]: lambda offer: buy(offer, **dict.fromkeys(offer.products, 5)),
    }
    for label, happens in states.items():
        _, offer, address = prepared()
        happens(offer)
        page = opened(enter(language=language, viewport=viewport, java_script_enabled=False), address)
        expect(page.get_by_role("heading", level=2)).to_have_text("Mechanical keyboard")
        expect(page.locator(".price")).to_have_text("9.90 EUR")
        expect(page.locator(".left")).to_have_text(none if label == says["sold out"] else some)
        form = page.locator(".buying button")
        expect(form).to_have_text(label)
        box = form.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= viewport["height"], "the button is in the first screen"
        form.click(force=True)  # also where it is marked as disabled, because the form decides
        page.wait_for_url(re.compile(r"/account/login/\?next=/sales/.*/buy/"))
    _, _, address = prepared(opens=timedelta(minutes=30))
    page = opened(enter(language=language, viewport=viewport, java_script_enabled=False), address)
    expect(page.locator(".buying button")).to_have_text(NOT_OPEN[language])


def test_the_page_with_its_picture_is_light(enter: Enter) -> None:
    customer, _, address = prepared()
    largest = max(PICTURES.iterdir(), key=lambda file: file.stat().st_size)
    Product.objects.update(picture=f"/static/shop/products/{largest.name}")
    context = enter(customer)
    bodies: dict[str, bytes] = {}
    context.on("requestfinished", lambda request: bodies.setdefault(request.url, request.response().body()))
    page = opened(context, address)
    page.wait_for_load_state("networkidle")
    shows(page, SAYS["en"]["buy"])
    sizes = {re.sub(".*/", "", url) or "page": len(gzip.compress(body)) for url, body in bodies.items()}
    assert {"page", "base.css", "pages.css", "sale.js", "now.json"} <= set(sizes)
    assert sum(sizes.values()) <= MOST_BYTES, sizes
