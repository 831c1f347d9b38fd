"""All pages of the storefront in Chromium: axe finds nothing, nothing is cut, and no page mixes languages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from loadtest.local_shop import free_port
from shop.admin.recording import BY_OPERATOR
from shop.api.problems import PROBLEMS
from shop.models import Order, Product, Sale
from shop.orders import payments
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.expiry import expire_unpaid
from shop.orders.lookup import LOST
from shop.orders.returns import return_order
from shop.pages import sales
from shop.payments.request import PaymentRequest
from shop.payments.simulator import reports
from shop.payments.simulator.payments import Button
from shop.runtime import door
from shop.sales import lifecycle, offers
from shop.waiting import room
from tests.browser import IN_BROWSER
from tests.factories import OnSale, new_customer, on_sale
from tests.shop.browser_support import DESKTOP, PHONE, Enter, assert_accessible, for_each_reader, opened
from tests.shop.conftest import buy, make_due, raising
from tests.shop.payment_support import SECRET
from tests.shop.test_provider import provider_in_a_thread
from tests.shop.waiting_support import enter_all, set_rate, with_room

# The shop runs in this process, so that a test can let a page fail.
pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("live_server")]

HOUR = timedelta(hours=1)
REFUSALS = Path(door.__file__).with_name("refusals")
ENGLISH = re.compile(r"[A-Za-z]{2,}(?:[ ,.]+[A-Za-z]{2,}){2,}")
"""Three English words in a row. A page in Chinese has none, except for code, and for names that a shop gives."""
CHINESE = re.compile(r"[\u4e00-\u9fff]+")

WORDS = """
    document.querySelectorAll("code, .languages").forEach((each) => each.remove());
    document.body.innerText
"""
"""Removes code and the names of languages, and returns the text of the page."""


class Walk:
    """A visitor who opens one page after another."""

    def __init__(self, enter: Enter, language: str, viewport: dict[str, int], customer: int | None = None) -> None:
        self.page, self.language = enter(customer, language, viewport=viewport).new_page(), language

    def go(self, path: str, name: str, status: int = 200) -> None:
        response = self.page.goto(path)
        assert response is not None
        assert response.status == status, path
        self.look(name)

    def look(self, name: str) -> None:
        """Check the page that is open, and take a screenshot."""
        page = self.page
        assert_accessible(page, name)
        assert page.locator("h1").count() == 1, page.url
        assert page.locator("html").get_attribute("lang") == self.language
        words = page.evaluate(WORDS)
        foreign = ENGLISH if self.language == "zh-hans" else CHINESE
        assert foreign.findall(words) == [], page.url


def all_sales() -> dict[str, OnSale]:
    """Create a sale in each state, with the state in its slug, and return the sales by state."""
    made = {
        "open": on_sale({"keyboard": 40, "headphones": 3}, closes=HOUR, limit=2),
        "coming": on_sale({"lamp": 30}, opens=HOUR, closes=2 * HOUR),
        "paused": on_sale({"camera": 5}, closes=2 * HOUR),
        "sold-out": on_sale({"poster": 1}, closes=3 * HOUR),
        "over": on_sale({"record": 9}, opens=-2 * HOUR, closes=-HOUR),
        "room": on_sale({"record": 9}, closes=4 * HOUR),
    }
    set_rate(made["room"], 1)
    lifecycle.pause(made["paused"].sale)
    buy(made["sold-out"], poster=1)
    for product in Product.objects.all():
        Product.objects.filter(pk=product.pk).update(picture=f"/static/shop/products/{product.sku}.svg")
    for state, offer in made.items():
        Sale.objects.filter(pk=offer.sale).update(name=f"Sale {len(state)}", slug=f"sale-{state}")
    return made


@for_each_reader
def test_the_pages_of_sales(enter: Enter, language: str, viewport: dict[str, int]) -> None:
    customer = new_customer()
    order = buy(all_sales()["open"], customer, keyboard=1).order.pk
    visitor, buyer = Walk(enter, language, viewport), Walk(enter, language, viewport, customer)
    visitor.go("/", "home")
    visitor.go("/sales/", "sales")
    for state in ("open", "coming", "paused", "sold-out", "over", "room"):
        visitor.go(f"/sales/sale-{state}/", f"sale {state}")
    buyer.go("/sales/sale-open/buy/", "buy all")
    buyer.page.locator("[name=quantity]").first.fill("2")
    buyer.go("/sales/sale-coming/buy/", "buy coming", 409)
    buyer.go("/sales/sale-over/buy/", "buy over", 409)
    buyer.go("/sales/sale-sold-out/buy/", "buy sold out")
    with buyer.page.expect_navigation():
        buyer.page.locator(".order-form button").click()
    buyer.look("bought nothing")
    buyer.go("/waiting/sale-room/", "room")
    buyer.go("/orders/", "orders")
    buyer.go(f"/orders/{order}/", "order")


ENDED: dict[str, Callable[[UUID, int], Any]] = {
    "cancelled": lambda order, customer: cancel_order(order, customer=customer),
    "expired": lambda order, _: (make_due(order), expire_unpaid()),
    "over": lambda order, _: make_due(order),
    "paid": lambda order, customer: pay_order(order, customer=customer),
    "recorded": lambda order, _: payments.receive_payment(
        f"{BY_OPERATOR}{order}", order=order, amount=Decimal("19.80")
    ),
    "refunded": lambda order, customer: (ENDED["paid"](order, customer), return_order(order, by=customer)),
    "partly refunded": lambda order, customer: (
        ENDED["paid"](order, customer),
        return_order(order, by=customer, returned={"lp": 1}),
    ),
    "rejected": lambda order, _: Order.objects.filter(pk=order).update(
        state=Order.State.REJECTED, reason="lp: 2 wanted, 1 left"
    ),
    "lost": lambda order, _: Order.objects.filter(pk=order).update(state=Order.State.REJECTED, reason=LOST),
}
"""What has happened to an order, by the state of its page."""


@for_each_reader
def test_the_pages_of_orders_in_all_states(enter: Enter, language: str, viewport: dict[str, int]) -> None:
    customer = new_customer()
    offer = on_sale({"lp": 30})
    Sale.objects.filter(pk=offer.sale).update(name="Sale", slug="sale-lp")
    orders = {name: buy(offer, customer, lp=2).order.pk for name in ENDED}
    for name, change in ENDED.items():
        change(orders[name], customer)
    buyer = Walk(enter, language, viewport, customer)
    for name, order in orders.items():
        buyer.go(f"/orders/{order}/", f"order {name}")
        assert buyer.page.locator("header .actions, header .lead, header .hint").count(), name
    buyer.go("/orders/", "orders in all states")


@for_each_reader
def test_the_pages_of_a_waiting_room_in_all_states(
    enter: Enter, language: str, viewport: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    customer, sales = new_customer(), {}
    for state, coming in {"draw": True, "lost": True, "ended": False}.items():
        sales[state] = with_room(coming=coming)
        Sale.objects.filter(pk=sales[state].sale).update(name="Sale", slug=f"sale-{state}")
        offers.forget(sales[state].sale)
    buyer = Walk(enter, language, viewport, customer)
    with monkeypatch.context() as patch:
        patch.setattr(room, "TURN", 0 * room.TURN)
        for state in ("draw", "ended"):
            enter_all(offers.get(sales[state].sale), [customer])
    for state in sales:
        buyer.go(f"/waiting/sale-{state}/?entered", f"room {state}")
        assert buyer.page.locator(".room").get_attribute("data-state") == state


@for_each_reader
def test_the_pages_of_errors(
    enter: Enter, language: str, viewport: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = Walk(enter, language, viewport)
    visitor.go("/nothing/", "404", 404)
    visitor.go("/sales/nothing/", "404 sale", 404)
    visitor.go("/sales", "404 slash", 404)
    visitor.page.goto("/account/login/")
    visitor.page.evaluate("document.querySelector('[name=csrfmiddlewaretoken]').value = ''")
    visitor.page.locator("[name=login]").fill("a")
    visitor.page.locator("[name=password]").fill("b")
    with visitor.page.expect_navigation():
        visitor.page.locator("main form button").click()
    visitor.look("403")
    monkeypatch.setattr(sales.now, "get_all", raising(RuntimeError("broken")))
    visitor.go("/sales/", "500", 500)


@for_each_reader
def test_the_pages_of_all_problem_types(enter: Enter, language: str, viewport: dict[str, int]) -> None:
    visitor = Walk(enter, language, viewport)
    for slug in PROBLEMS:
        visitor.go(f"/api/problems/{slug}/", f"problem {slug}")


@for_each_reader
def test_the_pages_that_the_web_server_sends_when_it_refuses(
    enter: Enter, language: str, viewport: dict[str, int]
) -> None:
    """The files are in both languages at once, so their words are not checked."""
    page = Walk(enter, language, viewport).page
    for file in sorted(REFUSALS.glob("*.html")):
        page.goto(file.as_uri())
        assert_accessible(page, f"refusal {file.stem}")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the simulated provider in a thread. No shop answers its reports, and it sends each of them once."""
    monkeypatch.setattr(reports, "RETRY_DELAYS", ())
    with provider_in_a_thread(f"http://127.0.0.1:{free_port()}") as address:
        yield address


@for_each_reader
def test_the_pages_of_the_provider(
    enter: Enter, language: str, viewport: dict[str, int], provider: str, settings: Any
) -> None:
    settings.PAYMENT_SECRET = SECRET
    pay_by = timezone.now() + HOUR
    wanted = PaymentRequest(uuid4(), Decimal("9.90"), "EUR", pay_by, "http://127.0.0.1/orders/", language)
    request = f"{provider}/pay/?{wanted.signed(SECRET)}"
    buyer = Walk(enter, language, viewport)
    buyer.go(f"{provider}/", "provider")
    buyer.go(f"{request}0", "provider refuses", 403)
    for choice in Button:
        buyer.go(request, "provider pay")
        buyer.page.locator("[name=seconds]").fill("0")
        with buyer.page.expect_navigation(url="**/payments/**"):
            buyer.page.locator(f"button[value={choice}]").click()
        # The page reloads itself until the provider has given up its reports.
        expect(buyer.page.locator("meta[http-equiv=refresh]")).to_have_count(0)
        buyer.look(f"provider payment {choice}")


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_of_the_api(enter: Enter, viewport: dict[str, int]) -> None:
    """The page is in English alone, as the API is. It works under its policy: the browser complains about nothing."""
    page = opened(enter(viewport=viewport), "/api/docs/")
    expect(page.get_by_text("/api/orders/", exact=True).first).to_be_visible()
    assert_accessible(page, "api")
    page.locator(".btn.authorize").click()
    expect(page.get_by_role("heading", name="Available authorizations")).to_be_visible()
    assert_accessible(page, "api authorize")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Place an order").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.get_by_role("heading", name="Server response")).to_be_visible()
    assert_accessible(page, "api tried")


# The first page in one screen


@for_each_reader
@pytest.mark.parametrize("selling", [True, False])
def test_the_first_page_shows_all_doors_in_one_screen(
    enter: Enter, language: str, viewport: dict[str, int], *, selling: bool
) -> None:
    if selling:
        all_sales()
    page = opened(enter(None, language, viewport=viewport), "/")
    heading, *doors = [place(page, each) for each in ("h1", *(f".doors li:nth-child({n})" for n in range(1, 5)))]
    assert heading["y"] + heading["height"] <= viewport["height"]
    assert max(door["y"] + door["height"] for door in doors) <= viewport["height"]
    assert page.evaluate("document.documentElement.scrollHeight") <= viewport["height"]
    assert min(min(door["width"], door["height"]) for door in doors) >= 44, "a finger hits each door"
    assert_accessible(page, "home selling" if selling else "home empty", full_page=False)


def place(page: Page, selector: str) -> dict[str, float]:
    found = page.locator(selector).bounding_box()
    assert found is not None, selector
    return {**found}  # type: ignore[dict-item]
