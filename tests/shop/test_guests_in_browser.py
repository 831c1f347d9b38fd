"""A guest in Chromium: from the page of a sale to an order, with JavaScript and without, and the pages of guests."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from shop.models import Guest, Order, Sale
from tests.browser import IN_BROWSER
from tests.factories import orders_in
from tests.shop.browser_support import SAYS, Enter, assert_accessible, button, for_each_reader, opened, shows, sold

pytestmark = IN_BROWSER

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


def become_guest(page: Page, words: dict[str, str]) -> None:
    page.locator("[name=email]").fill(ADDRESS)
    page.get_by_role("button", name=words["guest"]).click()


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
    become_guest(page, words)
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


@pytest.mark.parametrize("language", WORDS)
def test_without_javascript_a_guest_buys_once(enter: Enter, language: str) -> None:
    words = WORDS[language]
    page = opened(enter(None, language, java_script_enabled=False), open_to_guests(limit=1))
    expect(page.locator("[data-guest]")).to_be_hidden()
    page.locator(".buying button").click()
    become_guest(page, words)
    expect(page.locator(".order-form")).to_be_visible()
    form = page.url
    page.locator(".order-form button").click()
    page.wait_for_url("**/orders/*/")
    bought = page.url
    page.goto(form)
    page.locator(".order-form button").click()
    assert page.url == bought, "the key is in the address of the form"
    assert (orders_in(), Order.objects.get().customer) == (1, Guest.objects.get().user)
