"""One press is one order, whatever fails on the way: two tabs, a reload, no connection, a busy shop, no JavaScript."""

from __future__ import annotations

import itertools
import re
import time
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.conf import settings
from playwright.sync_api import BrowserContext, Page, Route, expect

from shop import log_context
from shop.accounts.sessions import SessionStore
from shop.models import Order, OrderItem
from shop.pages.buying import kept_key
from tests.browser import IN_BROWSER
from tests.factories import new_customer, orders_in
from tests.shop.browser_support import (
    EN,
    ORDERS,
    PHONE,
    READERS,
    SAYS,
    TOKEN,
    Enter,
    at_the_button,
    button,
    for_each_reader,
    held_press,
    opened,
    orders_of,
    prepared,
    shows,
)
from tests.shop.payment_support import login_cookies
from tests.waiting import wait_for

pytestmark = IN_BROWSER

FORGETFUL = """
    const open = IDBFactory.prototype.open;
    IDBFactory.prototype.open = function (name, version) { return open.call(this, name + Math.random(), version); };
"""
"""For negative controls: a script that makes each page lose its stored data."""

ANSWERED = """
    () => new Promise((resolve, reject) => {
        const database = indexedDB.open("last-unit");
        database.onerror = reject;
        database.onsuccess = () => {
            const intents = database.result.transaction("intents").objectStore("intents").getAll();
            intents.onsuccess = () => resolve(intents.result.some((intent) => intent.order));
        };
    })
"""
"""A script that returns whether the response to an order is stored."""

RETRY_AFTER = """(value) => import("/static/shop/asking.js").then(({ retryAfter }) =>
    retryAfter(new Headers({ "Retry-After": value })))
"""
"""Returns the pause in milliseconds that a page makes for a value of this header."""

with_control = pytest.mark.parametrize(
    ("language", "viewport", "kept"),
    [
        *(pytest.param(*each.values, True, id=each.id) for each in READERS),
        pytest.param("en", PHONE, False, id="control"),
    ],
)
"""Runs a test in both languages at both widths, and once as a negative control."""

OFFLINE = 5000
"""Milliseconds without a connection."""


def refuse_orders(context: BrowserContext, *answers: tuple[int, str, str]) -> list[float]:
    """Give the next order requests these statuses, problems and values of Retry-After. Return their times."""
    left, asked = list(answers), []

    def refuse(route: Route) -> None:
        asked.append(time.monotonic())
        status, slug, wait = left.pop(0)
        headers = {"Retry-After": wait} if wait else {}
        route.fulfill(status=status, headers=headers, json={"type": f"/api/problems/{slug}/"})
        if not left:
            context.unroute(ORDERS)

    context.route(ORDERS, refuse)
    return asked


def lose_answer(route: Route) -> None:
    """Send the request to the shop, and drop the response."""
    route.fetch()
    route.abort()


def find_answers_again(context: BrowserContext) -> None:
    """Drop no more responses. A request may be on its way: first let `lose_answer` drop its response."""
    context.unroute_all(behavior="wait")


@with_control
def test_a_reload_after_a_lost_answer_buys_once(
    enter: Enter, language: str, viewport: dict[str, int], *, kept: bool
) -> None:
    """After a lost response, a reload does not buy twice. Negative control: a page that forgets its key buys again."""
    says = SAYS[language]
    page, _ = at_the_button(enter, language, viewport=viewport, script="" if kept else FORGETFUL)
    context = page.context
    keys, traces = orders_of(context), orders_of(context, "traceparent")
    context.route(ORDERS, lose_answer)
    button(page).click()
    shows(page, says["offline"])
    assert orders_in() == 1
    page.reload()
    shows(page, says["offline"] if kept else says["buy"])
    find_answers_again(context)
    if not kept:
        button(page).click()
    shows(page, says["yours"])
    assert (orders_in(), len(set(keys))) == ((1, 1) if kept else (2, 2))
    assert [log_context.trace_of(trace) for trace in traces] == keys, "all attempts of one press are one trace"
    page.reload()
    shows(page, says["yours"] if kept else says["buy"])


@with_control
def test_two_tabs_buy_once(enter: Enter, language: str, viewport: dict[str, int], *, kept: bool) -> None:
    """Two tabs buy once. Negative control: tabs that do not share the stored key buy once each."""
    says = SAYS[language]
    first, _ = at_the_button(enter, language, viewport=viewport, script="" if kept else FORGETFUL)
    context = first.context
    keys = orders_of(context)
    second = opened(context, first.url)
    shows(second, says["buy"])
    held: list[Route] = []
    context.route(ORDERS, lambda route: held.append(route))
    # Click in both tabs at once, before either can know of the other.
    for page in (first, second):
        page.evaluate("setTimeout(() => document.querySelector('.buying button').click(), 200)")
    for page in (first, second):
        shows(page, says["buying"])
    while len(held) < 2:
        first.wait_for_timeout(20)
    for route in held:
        route.continue_()
    context.unroute(ORDERS)
    for page in (first, second):
        shows(page, says["yours"])
    assert (orders_in(), len(set(keys))) == ((1, 1) if kept else (2, 2))


def test_another_press_after_buying_is_another_order(enter: Enter) -> None:
    page, _ = at_the_button(enter, limit=2)
    keys = orders_of(page.context)
    for orders in (1, 2):
        page.get_by_role("button", name=re.compile("Buy")).click()
        expect(page.get_by_role("link", name=re.compile("Yours"))).to_be_visible()
        wait_for(lambda orders=orders: len(set(keys)) == orders)  # type: ignore[misc]
        shows(page, EN["yours"])
        assert orders_in() == orders


@pytest.mark.parametrize(
    ("language", "viewport", "arrived", "same_key"),
    [
        *(
            pytest.param(*each.values, arrived, True, id=f"{each.id}-{arrived}")
            for each, arrived in zip(READERS, (True, False, False, True), strict=True)
        ),
        pytest.param("en", PHONE, True, False, id="control"),
    ],
)
def test_five_seconds_without_a_connection_during_the_purchase_buy_once(
    enter: Enter, language: str, viewport: dict[str, int], *, arrived: bool, same_key: bool
) -> None:
    """The connection is lost while the request is on its way, before or after it has arrived at the shop.

    Negative control: if each attempt had a key of its own, the page would buy twice.
    """
    says = SAYS[language]
    page, _ = at_the_button(enter, language, viewport=viewport)
    context = page.context
    keys = orders_of(context)
    order = held_press(page)
    shows(page, says["buying"])
    if arrived:
        order.fetch()
    context.set_offline(True)
    order.abort()
    context.unroute(ORDERS)
    shows(page, says["offline"])
    expect(page.locator(".note")).to_have_text(says["nothing lost"])
    page.wait_for_timeout(OFFLINE)
    shows(page, says["offline"])
    assert orders_in() == int(arrived)
    assert len(keys) > 1, "the page tries again in the meantime"
    if not same_key:
        context.route(ORDERS, with_another_key)
    context.set_offline(False)
    shows(page, says["yours"])
    assert (orders_in(), len(set(keys))) == (1 if same_key else 2, 1)
    page.reload()
    shows(page, says["yours"])
    assert orders_in() == (1 if same_key else 2)


def with_another_key(route: Route) -> None:
    route.continue_(headers={**route.request.headers, "idempotency-key": uuid4().hex})


AN_HOUR_EARLIER = """() => new Promise((resolve) => {
  indexedDB.open("last-unit", 1).onsuccess = ({ target }) => {
    const store = target.result.transaction("intents", "readwrite").objectStore("intents");
    store.openCursor().onsuccess = ({ target: { result: cursor } }) => {
      cursor.update({ ...cursor.value, at: cursor.value.at - 3_600_000 }).onsuccess = resolve;
    };
  };
})"""


@pytest.mark.parametrize("arrived", [True, False])
def test_a_press_of_an_earlier_visit_is_not_sent_without_a_word(enter: Enter, *, arrived: bool) -> None:
    """A customer opens the page an hour after a press without an answer. They press again, and buy once."""
    page, _ = at_the_button(enter)
    context, address = page.context, page.url
    context.route(ORDERS, lose_answer if arrived else lambda route: route.abort())
    button(page).click()
    shows(page, EN["offline"])
    page.goto("/account/")  # a page that sends no orders
    page.evaluate(AN_HOUR_EARLIER)
    find_answers_again(context)
    page.goto(address)
    shows(page, EN["buy"])
    expect(page.locator(".note")).to_contain_text("pressed Buy long ago")
    assert orders_in() == int(arrived)
    button(page).click()
    shows(page, EN["yours"])
    assert orders_in() == 1


def test_a_busy_shop_is_asked_again_with_the_same_key_and_not_before_it_says(enter: Enter) -> None:
    page, _ = at_the_button(enter)
    keys = orders_of(page.context)
    answers = [(503, "busy", "1"), (409, "still-running", "1"), (429, "too-fast", "1"), (500, "internal", "")]
    asked = refuse_orders(page.context, *answers)
    button(page).click()
    expect(page.locator(".note")).to_contain_text("The shop is busy.")
    shows(page, EN["yours"])
    assert (orders_in(), len(keys), len(set(keys))) == (1, 5, 1)
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(asked)), "Retry-After was 1 s each time"


def test_a_date_in_retry_after_keeps_the_usual_pauses(enter: Enter) -> None:
    """A CDN or a firewall may send a date. The page ignores it, and makes its own pauses, which grow."""
    page, _ = at_the_button(enter, script="Math.random = () => 0.5;")
    asked = refuse_orders(page.context, *[(429, "too-fast", "Wed, 21 Oct 2026 07:28:00 GMT")] * 3)
    button(page).click()
    expect(page.locator(".note")).to_contain_text("The shop is busy.")
    shows(page, EN["yours"])
    first, second = (later - earlier for earlier, later in itertools.pairwise(asked))
    assert (first >= 0.6, second >= 1.1, orders_in()) == (True, True, 1), "100 ms and half of 1 s, then of 2 s"


def test_retry_after_is_a_number_of_seconds_of_at_most_a_minute(enter: Enter) -> None:
    values = {"0": 0, "3": 3000, "86400": 60_000, "Wed, 21 Oct 2026 07:28:00 GMT": 0, "-5": 0, "1e9": 0, "": 0}
    _, _, address = prepared()
    page = opened(enter(), address)
    for value, milliseconds in values.items():
        assert page.evaluate(RETRY_AFTER, value) == milliseconds, value


@pytest.mark.parametrize("statuses", [[401], [408, 503, 503, 503, 401]], ids=["at once", "after failures"])
def test_a_token_that_has_ended_is_replaced(enter: Enter, statuses: list[int]) -> None:
    """The page replaces an expired token and sends the order again, also if earlier attempts have failed."""
    # Pauses are random. Without this script, five of them can take half a minute.
    page, _ = at_the_button(enter, script="Math.random = () => 0.1")
    keys = orders_of(page.context)
    refuse_orders(page.context, *((status, "x", "") for status in statuses))
    with page.expect_response(TOKEN):
        button(page).click()
    shows(page, EN["yours"])
    assert (orders_in(), len(keys), len(set(keys))) == (1, len(statuses) + 1, 1)


def test_the_answer_to_an_order_is_not_kept_for_the_next_customer(enter: Enter) -> None:
    """Somebody else logs in, in another tab, while an order of the first customer has no response yet."""
    (first, _, address), second = prepared(), new_customer()
    context = enter(first)
    page = opened(context, address)
    shows(page, EN["buy"])
    order = held_press(page)
    cookies = context.cookies()
    context.add_cookies(login_cookies(second, page.url))
    with page.expect_response(TOKEN):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(button(page)).to_have_text(EN["buy"])
    with page.expect_response(ORDERS):
        order.continue_()
    wait_for(lambda: page.evaluate(ANSWERED), "the response to be stored")
    context.unroute(ORDERS)
    expect(page.locator(".note")).to_be_empty()
    page.reload()
    expect(button(page)).to_have_text(EN["buy"])
    button(page).click()
    shows(page, EN["yours"])
    context.add_cookies(cookies)  # type: ignore[arg-type]
    page.reload()
    shows(page, EN["yours"])
    assert sorted(Order.objects.values_list("customer", flat=True)) == [first, second]


def test_who_has_logged_out_logs_in_and_the_order_goes_on(enter: Enter) -> None:
    page, _ = at_the_button(enter)
    context, address = page.context, urlsplit(page.url).path
    order = held_press(page)
    cookies = context.cookies()
    context.clear_cookies()
    order.fulfill(status=401, json={"type": "x"})
    context.unroute(ORDERS)
    shows(page, EN["log in"])
    assert (button(page).get_attribute("href"), orders_in()) == (f"/account/login/?next={address}", 0)
    context.add_cookies(cookies)  # type: ignore[arg-type]
    page.reload()
    shows(page, EN["yours"])
    assert orders_in() == 1


# The form, which buys before the script has its figures


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("button_first", [True, False])
def test_the_form_and_the_button_of_the_page_share_an_unanswered_order(
    enter: Enter, *, button_first: bool, shared: bool
) -> None:
    """A press whose response is lost, a reload, and the other way to press: one order.

    Negative control: without `buy.js`, the form uses another key, and a second order is placed.
    """
    customer, _, address = prepared()
    context = enter(customer)
    if not shared:
        context.route("**/buy.js", lambda route: route.abort())
    page = opened(context, address)
    shows(page, EN["buy"])
    if button_first:
        context.route(ORDERS, lose_answer)
        button(page).click()
        shows(page, EN["offline"])
    else:
        press_the_form(page, address)
        lose_the_order(page)
    assert orders_in() == 1
    if button_first:
        press_the_form(page, address)
        page.get_by_role("button", name=EN["buy"]).click()
        page.wait_for_url("**/orders/*/")
    else:
        context.unroute("**/now.json")
        page = opened(context, address)  # Use a new tab: the old one goes on loading its error page.
        shows(page, EN["buy"])
        button(page).click()
        shows(page, EN["yours"])
    assert orders_in() == (1 if shared else 2)


def press_the_form(page: Page, address: str) -> None:
    """Reload the page of the sale, and press before its script has figures."""
    page.context.route("**/now.json", lambda route: route.abort())
    page.goto(address)
    button(page).click()
    page.wait_for_url("**/buy/*")


def lose_the_order(page: Page) -> None:
    """Send the form to the shop, and drop the response, so that nobody sees the order."""

    def lose(route: Route) -> None:
        route.fetch(max_redirects=0)
        route.abort()

    page.context.route("**/buy/*", lambda route: lose(route) if route.request.method == "POST" else route.fallback())
    with page.expect_event("requestfailed", lambda request: request.method == "POST"):
        page.get_by_role("button", name=EN["buy"]).click()
    page.context.unroute("**/buy/*")


# Without a script, or without JavaScript


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("script", ["buy.js", "intents.js", "*.js"])
def test_the_form_buys_once_after_a_lost_answer_if_a_script_does_not_load(
    enter: Enter, script: str, *, kept: bool
) -> None:
    """A buyer who got no response opens the form again. Negative control: the session has forgotten the form's key."""
    customer, offer, address = prepared()
    context = enter(customer)
    context.route(f"**/{script}", lambda route: route.abort())
    page = context.new_page()
    press_the_form(page, address)
    lose_the_order(page)
    assert orders_in() == 1
    if not kept:
        (session,) = (each["value"] for each in context.cookies() if each["name"] == settings.SESSION_COOKIE_NAME)
        stored = SessionStore(session)
        del stored[kept_key(offer.sale)]
        stored.save()
    page = context.new_page()  # Use a new tab: the old one goes on loading its error page.
    press_the_form(page, address)
    page.get_by_role("button", name=EN["buy"]).click()
    page.wait_for_url("**/orders/*/")
    assert orders_in() == (1 if kept else 2)


def test_the_form_does_not_wait_for_a_script_that_never_comes(enter: Enter) -> None:
    """If the script neither loads nor fails, the form buys with its own key after a few seconds."""
    customer, _, address = prepared()
    context = enter(customer)
    context.route("**/intents.js", lambda route: None)
    page = opened(context, f"{address}buy/")
    page.get_by_role("button", name=EN["buy"]).click()
    page.wait_for_url("**/orders/*/")
    assert orders_in() == 1


@for_each_reader
def test_the_page_buys_once_without_scripts(enter: Enter, language: str, viewport: dict[str, int]) -> None:
    """The page buys without scripts. To go back and send the form again makes no second order."""
    buy = SAYS[language]["buy"]
    customer, _, address = prepared(limit=2)
    page = opened(enter(customer, language, viewport=viewport, java_script_enabled=False), address)
    page.locator(".buying input[name=quantity]").fill("2")
    page.get_by_role("button", name=buy).click()
    expect(page.locator("input[name=quantity]")).to_have_value("2")
    page.get_by_role("button", name=buy).click()
    page.wait_for_url("**/orders/*/")
    bought = page.url
    page.go_back()
    page.get_by_role("button", name=buy).click()
    page.wait_for_url(bought)
    assert list(OrderItem.objects.values_list("quantity", "order__customer")) == [(2, customer)]
