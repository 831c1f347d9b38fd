"""Pages of the admin and the API in Chromium, under their Content-Security-Policy."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect, sync_playwright
from redis import Redis

from shop.runtime import csp
from tests.browser import launch, needs_chromium
from tests.factories import on_sale

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), needs_chromium]


@pytest.mark.parametrize("strict", [False, True])
def test_pages_work_under_their_policy(
    live_server: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch, *, strict: bool
) -> None:
    """Pages work under their policy. Negative control: under other pages' policy, the browser reports violations."""
    if strict:
        monkeypatch.setattr(csp, "ADMIN", csp.PAGES)
    offer = on_sale({"a": 1})
    # Log in before Playwright starts, because its event loop keeps Django from using the database.
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page: Page = browser.new_context(base_url=live_server.url).new_page()
        page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": live_server.url}])
        page.on("console", lambda message: complaints.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
        for path in ("/admin/", f"/admin/shop/sale/{offer.sale}/change/", "/admin/inventory/stockitem/"):
            page.goto(path)
            expect(page.locator("#main")).to_be_visible()
        in_admin = [each for each in complaints if "Content Security Policy" in each or "unsafe-eval" in each]
        page.goto("/api/docs/")
        expect(page.get_by_text("/api/orders/", exact=True).first).to_be_visible()
        browser.close()
    assert bool(in_admin) is strict, complaints
    assert [each for each in complaints if each.startswith(f"{live_server.url}/api/")] == []
