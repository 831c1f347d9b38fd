"""The admin in Chromium, at the widths of a phone and a desktop: axe, nothing too wide, and the live overview."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from playwright.sync_api import ConsoleMessage, Response, expect

from shop.overview.alerts import ORDERS, Alert
from shop.runtime import csp
from tests.browser import DESKTOP, IN_BROWSER, PHONE, SCREENSHOTS
from tests.factories import new_customer, on_sale
from tests.shop.browser_support import Enter, assert_accessible, opened
from tests.shop.busy_shop import BusyShop
from tests.shop.test_metrics import send
from tests.shop.web_server import web_server

KINDS = {
    *("index", "app_list", "admin_locks", "admin_lock_release", "password_change", "auth_user_password_change"),
    *("shop_order_changelist", "inventory_stockitem_changelist", "shop_refund_changelist", "auth_group_changelist"),
    *("shop_order_change", "shop_sale_change", "shop_sale_add", "auth_user_change", "shop_unmatchedreport_change"),
    *("shop_sale_history", "shop_payment_history", "auth_group_delete", "shop_product_delete"),
    *("shop_order_cancel_one", "shop_order_record_payment", "shop_order_refund_items"),
    *("shop_sale_pause_one", "shop_sale_extend", "shop_sale_preflight"),
}
"""Names of the pages that stand for all pages of their kind. With `SCREENSHOTS`, all pages are opened."""
IN_THE_DARK = {"index", "shop_refund_changelist", "shop_order_change", "shop_sale_change", "shop_order_record_payment"}
"""Pages that are also opened with the dark colours of the theme."""
MOST_POLLS = 3
"""Maximum number of polls until the overview shows an order. One may be under way, and one may get cached figures."""

pytestmark = IN_BROWSER


class Operator:
    """An operator in Chromium, with checks of each page."""

    def __init__(self, enter: Enter, customer: int | None, language: str = "en", **options: Any) -> None:
        self.page = enter(customer, language, ignored=("",), **options).new_page()
        self.complaints: list[str] = []
        self.missing = ""
        self.page.on("pageerror", lambda error: self.complaints.append(f"{self.page.url}: {error}"))
        self.page.on("console", self._hear)

    def _hear(self, message: ConsoleMessage) -> None:
        """Note an error in the console, except the browser's own error for the page `missing`, which has status 404."""
        if message.type == "error" and not (self.missing and message.location["url"].endswith(self.missing)):
            self.complaints.append(f"{self.page.url}: {message.text}")

    def look(self, name: str, path: str = "") -> None:
        """Open a page, and check that axe reports nothing and that it is not wider than the screen."""
        if path:
            self.page.goto(path)
        self.page.wait_for_load_state("load")
        assert_accessible(self.page, f"admin {name}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("viewport", "locale", "scheme"),
    [(DESKTOP, "en", "light"), (PHONE, "zh-CN", "light"), (DESKTOP, "en", "dark")],
    ids=["desktop", "phone", "dark"],
)
def test_each_kind_of_page_is_accessible_and_fits_and_works_under_its_policy(
    live_server: Any, enter: Enter, viewport: Any, locale: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The admin is in English in every browser; only the error pages have the language of the browser.

    Negative control: under the Content-Security-Policy of other pages, the browser complains.
    """
    shop = BusyShop()
    kinds = IN_THE_DARK if scheme == "dark" else KINDS
    pages = [(name, path) for name, path, _ in shop.pages() if SCREENSHOTS or name in kinds]
    assert {name for name, _ in pages} >= kinds
    operator = Operator(enter, shop.root.pk, locale, viewport=viewport, color_scheme=scheme)
    visitor = Operator(enter, None, locale, viewport=viewport, color_scheme=scheme)
    for name, path in pages:
        operator.look(name, path)
    operator.look("no_match", "/admin/shop/order/?q=nobody")
    operator.missing = "/admin/nothing/"
    operator.look("not_found", operator.missing)
    operator.page.goto(next(path for name, path in pages if name == "shop_order_record_payment"))
    operator.page.get_by_role("button", name="Record the payment").click()
    expect(operator.page.get_by_text("Enter the reference, or say below how it was paid.")).to_be_visible()
    operator.look("form_with_an_error")
    visitor.look("login", "/admin/")
    assert operator.complaints + visitor.complaints == []
    monkeypatch.setattr(csp, "ADMIN", csp.PAGES)
    with operator.page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        operator.page.goto("/admin/")
    assert operator.complaints != []
    enter.complaints.clear()


HEARD = """
    window.heard = [];
    new MutationObserver((changes) => {
        for (const { target, addedNodes } of changes) {
            const inside = target.closest?.("[role=alert]");
            const added = [...addedNodes].filter((node) => node.matches?.("[role=alert]"));
            for (const alert of inside ? [inside] : added) heard.push(alert.textContent.trim());
        }
    }).observe(document.getElementById("overview"), { subtree: true, childList: true, characterData: true });
"""
"""A script that notes each text that a screen reader reads out as an alert."""


def test_an_alert_of_the_overview_is_read_out_once(enter: Enter) -> None:
    """A figure in an alert changes every second. That is no new alert."""

    def alert(wrong: str) -> Alert:
        return Alert(wrong, "Start more workers.", "the-queue-grows", ORDERS)

    first = [alert(f"5 orders are queued, the oldest for {age} s.") for age in (21, 22, 23, 24)]
    second = alert("The stock of sku-1 is broken.")
    shown = [[first[0]], [first[1]], [first[2], second], [first[3], second]]
    answers = [{"parts": {"alerts": render_to_string("shop/overview/alerts.html", {"alerts": each})}} for each in shown]
    page = opened(enter(User.objects.create_superuser("root").pk), "/admin/")
    page.evaluate(HEARD)
    page.route("**/admin/live/", lambda route: route.fulfill(json=answers.pop(0) if len(answers) > 1 else answers[0]))
    expect(page.locator("[data-part=alerts]")).to_contain_text("oldest for 24 s")
    assert [text.split(".")[0] for text in page.evaluate("heard")] == [
        "5 orders are queued, the oldest for 21 s",
        "The stock of sku-1 is broken",
    ]


def test_an_overview_shows_an_order_and_a_refusal_soon(enter: Enter, tmp_path: Path) -> None:
    """Orders are placed through the API of a real web server, so its metrics have the times of the answers."""
    offer = on_sale({"a": 1})
    polls: list[Response] = []
    first, second = new_customer(), new_customer()
    root = User.objects.create_superuser("root").pk
    with web_server(METRICS_FOLDER=str(tmp_path / "metrics")) as (port, _):
        operator = Operator(enter, root, base_url=f"http://127.0.0.1:{port}")
        page = operator.page
        page.on("response", lambda response: polls.append(response) if "/admin/live/" in response.url else None)
        page.goto("/admin/")
        expect(page.get_by_role("img", name="0 units sold and 1 left")).to_be_visible()
        expect(page.get_by_text("p99")).to_have_count(0)
        with page.expect_response("**/admin/live/"):
            pass
        assert send(port, offer, first) == 201
        page.evaluate("0")  # Let Playwright count the polls that were answered during the order.
        before = len(polls)
        expect(page.get_by_role("img", name="1 units sold and 0 left")).to_be_visible()
        assert len(polls) - before <= MOST_POLLS
        assert send(port, offer, second) == 409
        shown = page.locator("[data-part=figures] dt")
        for label in ("Orders answered, p50", "p99", "Refused/s: sold-out"):
            expect(shown.get_by_text(label, exact=True)).to_be_visible()
        expect(page.locator("[data-part=sales]")).to_contain_text("sold out")
        operator.look("overview_with_refusals")
    assert operator.complaints == []
