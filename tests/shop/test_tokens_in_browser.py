"""The page of a sale requests few access tokens (in Chromium), so that a watching crowd does not reach the shop."""

from __future__ import annotations

from django.conf import settings
from playwright.sync_api import Page

from shop.pages import login_hint
from tests.browser import IN_BROWSER
from tests.factories import new_customer
from tests.shop.browser_support import EN, Enter, at_the_button, button, opened, prepared, requests_of, shows
from tests.shop.payment_support import login_cookies
from tests.waiting import wait_for

pytestmark = IN_BROWSER

IDENTIFIED = "import('/static/shop/visit.js').then(({ visit }) => visit.identify()).then((login) => login?.access)"
"""Waits until the page has asked for the log-in, and returns the token; null without a log-in."""
END_TOKEN = "import('/static/shop/visit.js').then(({ visit }) => { visit.login.until = 0; })"


def return_to(page: Page) -> None:
    """Return to a tab, and wait until its page has checked the log-in again."""
    with page.expect_response("**/now.json"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.evaluate(IDENTIFIED)


def test_a_customer_requests_one_token_for_each_page_load(enter: Enter) -> None:
    """A return to the tab requests no token. Negative control: with an expired token, it requests one."""
    customer, _, address = prepared()
    context = enter(customer)
    tokens = requests_of(context, "/account/token/")
    page = opened(context, address)
    shows(page, EN["buy"])
    for _ in range(3):
        return_to(page)
    assert len(tokens) == 1
    page.evaluate(END_TOKEN)
    return_to(page)
    assert len(tokens) == 2
    page.reload()
    shows(page, EN["buy"])
    assert len(tokens) == 3


def test_the_page_follows_log_ins_and_log_outs_of_other_tabs(enter: Enter) -> None:
    first, _, address = prepared()
    second = new_customer()
    context = enter()
    tokens = requests_of(context, "/account/token/")
    page = opened(context, address)
    shows(page, EN["log in"])
    for count, customer in enumerate((first, second), 1):
        context.clear_cookies()
        context.add_cookies(login_cookies(customer, page.url))
        return_to(page)
        shows(page, EN["buy"])
        name = page.evaluate("import('/static/shop/visit.js').then(({ visit }) => visit.customer)")
        assert (name, len(tokens)) == (customer, count)
    context.clear_cookies()
    return_to(page)
    shows(page, EN["log in"])
    assert len(tokens) == 2


def test_a_press_after_a_log_out_elsewhere_sends_nothing(enter: Enter) -> None:
    page, _ = at_the_button(enter)
    orders = requests_of(page.context, "/api/orders/")
    page.context.clear_cookies()
    button(page).click()
    shows(page, EN["log in"])
    assert orders == []


def test_a_session_that_has_ended_costs_one_request(enter: Enter) -> None:
    """The response deletes the hint, so later pages request no token."""
    customer, _, address = prepared()
    context = enter(customer)
    context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    tokens = requests_of(context, "/account/token/")
    page = opened(context, address)
    shows(page, EN["log in"])
    wait_for(lambda: login_hint.COOKIE not in [each.get("name") for each in context.cookies()])
    page.reload()
    shows(page, EN["log in"])
    return_to(page)
    assert len(tokens) == 1
