"""The overview in Chromium: an open page follows the sale until its tab is hidden."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect, sync_playwright

from shop.sales import lifecycle
from tests.browser import launch, needs_chromium
from tests.factories import elsewhere, on_sale
from tests.shop.conftest import buy
from tests.shop.test_overview import SCRIPT, fresh

__all__ = ["fresh"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis"),
    needs_chromium,
]

STAMPED = """
window.shownAt = {};
new MutationObserver(() => {
  const text = document.querySelector("[data-part=sales] .live-row")?.innerText.replace(/\\s+/g, " ");
  if (text) window.shownAt[text.slice(0, 13)] ??= Date.now();
}).observe(document, { childList: true, subtree: true });
"""
"""Notes when the page has first shown each "Sold 1 Left 2", in milliseconds since 1970."""


def test_an_open_overview_follows_the_sale_until_its_tab_is_hidden(live_server: Any) -> None:
    """A tab shows within 2 s what has changed, and sends nothing while it is hidden.

    Negative controls, at the same time: a tab that asks every 5 s is later, and the visible tab goes on asking.
    """
    offer = on_sale({"a": 3})
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = launch(playwright)
        context = browser.new_context(base_url=live_server.url, viewport={"width": 390, "height": 844})
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": live_server.url}])
        context.add_init_script(STAMPED)

        def tab(script: str = SCRIPT) -> tuple[Page, list[str]]:
            asked: list[str] = []
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: asked.append(request.url) if "/live/" in request.url else None)
            page.route("**/overview*.js", lambda route: route.fulfill(body=script, content_type="text/javascript"))
            page.goto("/admin/")
            expect(page.get_by_role("img", name="0 units sold and 3 left")).to_be_visible()
            return page, asked

        page, asked = tab()
        away, asked_away = tab()
        away.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away}); window.away = true")
        asked.clear()
        asked_away.clear()
        slow, _ = tab(re.sub(r"PAUSE = \d+", "PAUSE = 5000", SCRIPT))
        with slow.expect_response("**/admin/live/"):
            slow.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        with page.expect_response("**/admin/live/"):
            pass  # From now on, both wait for their whole pause before they ask again.
        changed = elsewhere(lambda: (buy(offer, a=1), time.time())[1]) * 1000
        shown = "() => window.shownAt['Sold 1 Left 2']"
        assert page.wait_for_function(shown).json_value() - changed <= 2000
        slow.wait_for_function(f"Date.now() > {changed + 2000}")
        assert slow.evaluate(shown) is None
        expect(page.locator("[data-part=verdict]")).to_contain_text("1 unit sold")
        elsewhere(lambda: lifecycle.pause(offer.sale))
        expect(page.get_by_role("alert").first).to_contain_text("has been paused since")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone"
        while len(asked) < 3:
            page.wait_for_event("request")
        assert len(asked_away) <= 1, "one request may have been under way when the tab was hidden"
        with away.expect_request("**/admin/live/"):
            away.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
        browser.close()
    assert complaints == []
