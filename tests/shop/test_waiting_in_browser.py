"""A waiting room in Chromium: enter it from the sale's page, wait for the turn, and order."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from django_redis import get_redis_connection
from playwright.sync_api import BrowserContext, Page, expect

from shop.models import Product, Sale
from shop.sales import lifecycle, offers
from shop.waiting import room
from tests.browser import IN_BROWSER
from tests.factories import OnSale, new_customer, orders_in
from tests.shop.browser_support import DESKTOP, PHONE, Enter, assert_accessible, crowd, opened, requests_of
from tests.shop.waiting_support import set_rate, with_room

SALE, ROOM = "/sales/tonight/", "/waiting/tonight/"
OTHERS = 811
"""Number of customers who are already in the line."""
WORDS = {
    "en": ("Enter the waiting room", "You are number 812", "Buy", "Yours."),
    "zh-CN": ("进入等候室", "您是第 812 位", "购买", "抢到了"),
}

# The shop runs in this process, so that a test can change how often a page polls.
pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("live_server")]

Visit = Callable[..., BrowserContext]


@pytest.fixture
def visit(enter: Enter) -> Visit:
    """Open the browser of a new customer."""
    return lambda language="en", **options: enter(new_customer(), language, **options)


@pytest.fixture
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll per minute is too slow for a test."""
    monkeypatch.setattr(room, "SLOWEST", 2)


def crowded(**options: Any) -> OnSale:
    """Return a sale whose waiting room has a line of customers."""
    offer = with_room(rate=1, **options)
    Product.objects.filter(sku="a").update(name="Mechanical keyboard", picture="/static/shop/icon.svg")
    Sale.objects.filter(pk=offer.sale).update(name="Tonight only", slug="tonight")
    offers.forget(offer.sale)
    crowd(offer, OTHERS)
    return offer


def entered(context: BrowserContext, headline: str = "You are number 812") -> Page:
    """Enter the waiting room of the `crowded` sale, and return its page."""
    page = opened(context, ROOM)
    page.locator("form button").click()
    says(page, headline)
    return page


def says(page: Page, headline: str | re.Pattern[str]) -> None:
    expect(page.locator("[data-shown=headline]")).to_have_text(headline)


@pytest.mark.usefixtures("polls_often")
@pytest.mark.parametrize("language", WORDS)
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP])
def test_a_buyer_waits_for_their_turn_and_buys(visit: Visit, language: str, viewport: Any) -> None:
    enters, number, buy, yours = WORDS[language]
    offer = crowded()
    context = visit(language, viewport=viewport)
    sale = opened(context, SALE)
    leads = sale.locator(".buying a.button")
    expect(leads).to_have_text(enters)
    leads.click()
    sale.get_by_role("button", name=enters).click()
    says(sale, number)
    assert_accessible(sale)

    shop = opened(context, SALE)
    button = shop.locator(".buying button")
    expect(button).to_have_text(number)
    expect(button).to_have_attribute("aria-disabled", "true")
    assert_accessible(shop)

    set_rate(offer, 5000)
    sale.wait_for_url(f"**{SALE}")
    for page in (sale, shop):
        expect(page.locator(".product")).to_have_attribute("data-state", "open")
        expect(page.locator(".buying button")).to_have_text(buy)
    sale.locator(".buying button").click()
    expect(sale.locator(".buying a.button")).to_contain_text(yours)
    assert orders_in("pending") == 1


@pytest.mark.usefixtures("polls_often")
def test_lost_places_are_told_and_the_sale_goes_on(visit: Visit, redis: Any) -> None:
    crowded()
    page = entered(visit())
    redis.flushall()
    says(page, "Your place was lost")
    page.get_by_role("button", name="Enter the waiting room").click()
    page.wait_for_url(f"**{SALE}")
    expect(page.locator(".product")).to_have_attribute("data-state", "open")
    page.locator(".buying button").click()
    expect(page.locator(".buying a.button")).to_contain_text("Yours.")


# Pauses, and another opening

PAUSED = {"en": "obody is admitted until it goes on.", "zh-CN": "恢复之前不会放行。"}


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP])
@pytest.mark.parametrize("language", WORDS)
def test_a_pause_is_shown_in_place_of_the_estimate(visit: Visit, language: str, viewport: Any) -> None:
    offer = crowded()
    page = entered(visit(language, viewport=viewport), WORDS[language][1])
    notice, estimate = page.locator("[data-shown=paused]"), page.locator("[data-shown=estimate]")
    expect(estimate).to_be_visible()
    expect(notice).to_be_hidden()
    lifecycle.pause(offer.sale)
    expect(notice).to_contain_text(PAUSED[language])
    expect(notice).to_be_visible()
    expect(estimate).to_be_hidden()
    says(page, WORDS[language][1])
    assert_accessible(page, "room paused")
    lifecycle.resume(offer.sale)
    expect(notice).to_be_hidden()
    expect(estimate).to_be_visible()


def test_a_pause_and_another_opening_are_noticed_in_the_draw(visit: Visit) -> None:
    """The pages of the draw show the change soon. Control: a page that cannot read the sale."""
    offer = crowded(coming=True)
    context = visit(timezone_id="UTC")
    room_page, deaf = entered(context, "You are in the draw"), context.new_page()
    deaf.route("**/now.json", lambda route: route.abort())
    for page in (room_page, deaf):
        page.goto(ROOM)
        says(page, "You are in the draw")
    sale_page = opened(context, SALE)
    expect(sale_page.locator(".product")).to_have_attribute("data-state", "draw")
    lifecycle.pause(offer.sale)
    expect(room_page.locator("[data-shown=paused]")).to_be_visible()
    expect(sale_page.locator(".note")).to_contain_text(PAUSED["en"])
    lifecycle.resume(offer.sale)
    later = timezone.now() + timedelta(minutes=90)
    Sale.objects.filter(pk=offer.sale).update(opens_at=later)
    for page in (room_page, sale_page):
        expect(page.locator("time[data-shown=opens_at]")).to_contain_text(f"{later:%H:%M}")
    Sale.objects.filter(pk=offer.sale).update(opens_at=timezone.now())
    says(room_page, re.compile("You are number [0-9]+"))
    expect(sale_page.locator(".buying button")).to_have_text(re.compile("You are number [0-9]+"))
    says(deaf, "You are in the draw")


# The title, and a hidden page


TITLES = {
    "en": ("811 ahead · Waiting room: Tonight only · Last Unit", "It is your turn · "),
    "zh-CN": ("前面还有 811 人 · 等候室: Tonight only · Last Unit", "轮到您了 · "),
}
HIDE = "Object.defineProperty(document, 'hidden', { value: true, configurable: true })"
RETURN = "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"


def turns_begun(offer: OnSale) -> int:
    """Return how many turns have begun, without the one of the first customer in the line, who did not have to wait."""
    return int(get_redis_connection("default").hlen(room.keys(offer.sale)[2])) - 1


@pytest.mark.usefixtures("polls_often")
@pytest.mark.parametrize("language", TITLES)
def test_a_hidden_page_tells_the_turn_in_its_title_and_does_not_begin_it(visit: Visit, language: str) -> None:
    waiting, turn = TITLES[language]
    offer = crowded()
    page = entered(visit(language), WORDS[language][1])
    # Some have been admitted since, but the line still has hundreds.
    expect(page).to_have_title(re.compile(re.escape(waiting).replace("811", "(8[01][0-9]|7[0-9]{2})")))
    page.evaluate(HIDE)
    set_rate(offer, 100)
    expect(page).to_have_title(re.compile(f"^{turn}"))
    page.wait_for_timeout(3000)  # Longer than the two seconds between polls. A poll would begin the turn now.
    assert turns_begun(offer) == 0
    page.evaluate(RETURN)
    page.wait_for_url(f"**{SALE}")
    expect(page.locator(".buying button")).to_have_text(WORDS[language][2])
    assert turns_begun(offer) == 1


def test_a_turn_that_begins_on_a_hidden_page_is_told_in_its_title(visit: Visit) -> None:
    """If the rate rises a lot, the next poll finds the turn before the page expects it."""
    offer = crowded()
    page = entered(visit())
    page.evaluate(HIDE)
    set_rate(offer, 5000)
    read = offers.get(offer.sale)
    assert read is not None
    room.look(read, 100_001)  # The new rate counts from here.
    page.wait_for_timeout(1000)
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page).to_have_title(re.compile("^It is your turn · "))
    assert (turns_begun(offer), "/waiting/" in page.url) == (1, True)
    page.evaluate(RETURN)
    page.wait_for_url(f"**{SALE}")


def test_a_return_to_the_page_polls_once_in_two_seconds(visit: Visit) -> None:
    """The shop asks for one poll a minute. The place on a page could be that old, so a return polls at once."""
    offer = crowded()
    page = entered(visit())
    polls = requests_of(page, "/waiting/")
    page.wait_for_timeout(2000)
    assert polls == []
    with page.expect_response(f"**/api/sales/{offer.sale}/waiting/"):
        page.evaluate(RETURN)
    for _ in range(5):
        page.evaluate(RETURN)
    page.wait_for_timeout(1000)
    assert len(polls) == 1
    with page.expect_response(f"**/api/sales/{offer.sale}/waiting/"):
        page.wait_for_timeout(1500)
    assert len(polls) == 2
