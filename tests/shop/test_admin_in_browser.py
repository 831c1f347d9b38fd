"""The admin in Chromium, at the widths of a phone and a desktop: axe, nothing too wide, and alerts read out."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from playwright.sync_api import Page, expect

from shop.overview.alerts import ORDERS, Alert
from shop.runtime import csp
from tests.browser import DESKTOP, IN_BROWSER, PHONE, SCREENSHOTS
from tests.shop.browser_support import Enter, assert_accessible, opened
from tests.shop.busy_shop import BusyShop

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

pytestmark = IN_BROWSER


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
    page, visitor = (
        enter(who, locale, ignored=("[DOM]",), viewport=viewport, color_scheme=scheme).new_page()
        for who in (shop.root.pk, None)
    )

    def look(name: str, path: str = "", by: Page = page) -> None:
        if path:
            by.goto(path)
        by.wait_for_load_state("load")
        assert_accessible(by, f"admin {name}")

    for name, path in pages:
        look(name, path)
    look("no_match", "/admin/shop/order/?q=nobody")
    page.goto(next(path for name, path in pages if name == "shop_order_record_payment"))
    page.get_by_role("button", name="Record the payment").click()
    expect(page.get_by_text("Enter the reference, or say below how it was paid.")).to_be_visible()
    look("form_with_an_error")
    look("login", "/admin/", visitor)
    assert enter.complaints == []
    look("not_found", "/admin/nothing/")
    assert ["status of 404" in each for each in enter.complaints] == [True], "the browser's own message"
    enter.complaints.clear()
    monkeypatch.setattr(csp, "ADMIN", csp.PAGES)
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        page.goto("/admin/")
    assert enter.complaints != []
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
