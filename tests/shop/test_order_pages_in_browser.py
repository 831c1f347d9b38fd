"""Order pages in Chromium: pay at the provider, return, cancel, count down; both languages, two widths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect
from redis import Redis

from loadtest.local_shop import free_port
from shop.models import Payment
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import save_queued
from shop.runtime import csp
from tests.browser import IN_BROWSER, take_screenshot
from tests.factories import OnSale, on_sale
from tests.shop.browser_support import Enter, assert_accessible, opened
from tests.shop.conftest import buy, make_due, on_hand, state
from tests.shop.payment_support import SECRET, provider_process

WIDTHS = (390, 1280)
OFFLINE = {"en": "No connection. The page tries again.", "zh-CN": "网络已断开，本页会自动重试。"}
WORDS = {
    "en": ("Pay 19.80 EUR", "Back to the shop", "Paid"),
    "zh-CN": ("付款 19.80 EUR", "返回商店", "已付款"),
}

# The shop runs in this process, so that a test can change its settings.
pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("live_server")]

Open = Callable[..., Page]


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5}, price="9.90")


@pytest.fixture
def order(offer: OnSale, customer: int) -> UUID:
    """A pending order of two units of a."""
    return buy(offer, customer, a=2).order.pk


@pytest.fixture(scope="module")
def provider_page(live_server: Any) -> Iterator[str]:
    port = free_port()
    with provider_process(port, live_server.url):
        yield f"http://127.0.0.1:{port}/pay/"


@pytest.fixture
def with_provider(provider_page: str, settings: Any) -> None:
    settings.PAYMENT_SECRET, settings.PAYMENT_PAGE = SECRET, provider_page


@pytest.fixture
def open_page(enter: Enter, customer: int) -> Open:
    """Open pages as the customer. No response may have an error status."""

    def open_one(path: str, *, width: int = 390, language: str = "en", **options: Any) -> Page:
        size = {"width": width, "height": 900}
        lost = ("Failed to load resource: net::ERR_INTERNET_DISCONNECTED",)
        return opened(enter(customer, language, viewport=size, ignored=lost, **options), path)

    return open_one


def look_well(page: Page, *, scripts: bool = True) -> None:
    """Check the page with axe, which cannot run in a browser without scripts."""
    if scripts:
        assert_accessible(page)


@pytest.mark.usefixtures("with_provider")
@pytest.mark.parametrize(
    ("language", "width", "scripts"),
    [("en", 1280, True), ("zh-CN", 390, True), ("en", 390, False), ("zh-CN", 1280, False)],
)
def test_a_buyer_pays_at_the_provider_and_comes_back_to_a_receipt(
    open_page: Open, order: UUID, *, language: str, width: int, scripts: bool
) -> None:
    pay, back, paid = WORDS[language]
    page = open_page(f"/orders/{order}/", width=width, language=language, java_script_enabled=scripts)
    look_well(page, scripts=scripts)
    page.get_by_role("button", name=pay).click()
    expect(page.locator(".amount")).to_have_text("19.80 EUR")
    page.locator("button[value=pay]").click()
    expect(page.locator(".attempt.accepted")).to_be_visible()
    look_well(page, scripts=scripts)
    page.get_by_role("link", name=back).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(paid)
    look_well(page, scripts=scripts)
    printing = page.locator("[data-print]")
    expect(printing).to_be_visible(visible=scripts)
    page.emulate_media(media="print")
    expect(page.get_by_role("navigation").first).to_be_hidden()
    expect(page.locator("table.items")).to_be_visible()
    assert (state(order), Payment.objects.count()) == ("paid", 1)


@pytest.mark.usefixtures("with_provider")
def test_under_the_policy_of_other_pages_the_form_would_not_lead_to_the_provider(
    enter: Enter, open_page: Open, order: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of `csp.with_forms_to`: under other pages' policy, Chromium stops the form's redirect."""
    monkeypatch.setattr(csp, "with_forms_to", lambda _origin: csp.STRICT)
    page = open_page(f"/orders/{order}/")
    with page.expect_event("console", lambda message: "form-action" in message.text):
        page.get_by_role("button", name="Pay 19.80 EUR").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Reserved: pay in time to keep it")
    enter.complaints.clear()


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_cancel_asks_once_and_returns_the_units(open_page: Open, order: UUID, *, scripts: bool) -> None:
    page = open_page(f"/orders/{order}/", java_script_enabled=scripts)
    sure = page.get_by_role("button", name="Yes, cancel it")
    expect(sure).to_be_hidden()
    page.get_by_text("Cancel the order").click()
    assert state(order) == "pending"
    sure.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancelled")
    assert (state(order), on_hand()[0]) == ("cancelled", 5)
    look_well(page, scripts=scripts)


def test_the_time_left_counts_down_and_the_page_sees_the_order_expire(
    open_page: Open, offer: OnSale, customer: int, settings: Any
) -> None:
    """The time left does not follow the clock of the device, which goes an hour forward."""
    settings.ORDER_TTL = 20
    order = buy(offer, customer, a=1).order.pk
    page = open_page(f"/orders/{order}/")
    page.evaluate("() => { const now = Date.now; Date.now = () => now() + 3_600_000; }")
    left = page.get_by_role("timer")
    before = left.text_content()
    expect(left).not_to_have_text(before or "")
    expect(left).to_have_text(re.compile(r"^0:[01]\d left to pay$"))
    make_due()
    expect(page.get_by_role("heading", level=1)).to_have_text("The time to pay is over")
    expire_unpaid()
    expect(page.get_by_role("heading", level=1)).to_have_text("Expired")
    expect(page.locator("#announced")).to_have_text("Expired")
    look_well(page)


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_a_queued_order_is_followed_until_it_is_saved(open_page: Open, customer: int, *, scripts: bool) -> None:
    order = buy(on_sale({"q": 2}, strategy="lua-queue"), customer, q=1).order.pk
    page = open_page(f"/orders/{order}/", java_script_enabled=scripts)
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("In the queue, place 1")
    save_queued()
    if not scripts:
        page.get_by_role("link", name="Look again").click()
    expect(heading).to_have_text("Reserved: pay in time to keep it")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("language", WORDS)
def test_a_lost_connection_is_shown_until_it_is_back(open_page: Open, customer: int, language: str, width: int) -> None:
    order = buy(on_sale({"q": 2}, strategy="lua-queue"), customer, q=1).order.pk
    page = open_page(f"/orders/{order}/", width=width, language=language)
    shown = page.locator(".connection")
    expect(shown).to_have_text("")
    page.context.set_offline(True)
    expect(shown).to_have_text(OFFLINE[language])
    expect(shown).to_be_in_viewport()
    take_screenshot(page, "order offline", full_page=False)
    page.context.set_offline(False)
    expect(shown).to_have_text("")
