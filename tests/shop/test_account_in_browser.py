"""From sign-up to a new password in Chromium, at the widths of a phone and a desktop, in both languages, with axe."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright
from redis import Redis

from tests.browser import DESKTOP, PHONE, launch, needs_chromium, take_screenshot
from tests.shop.browser_support import assert_accessible
from tests.shop.test_account_pages import link

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), needs_chromium]


class Walk:
    """A visitor in Chromium, with checks of each page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.seen = 0
        page.on("console", lambda message: self.complaints.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))

    def go(self, path: str) -> None:
        self.page.goto(path)
        self.check()

    def fill(self, **fields: str) -> None:
        """Fill in a form and send it."""
        for name, value in fields.items():
            self.page.locator(f"[name={name}]").fill(value)
        self.press("form.form .button >> nth=0")

    def press(self, button: str) -> None:
        with self.page.expect_navigation():
            self.page.locator(button).click()
        self.check()

    def check(self) -> None:
        """Check that axe reports nothing, nothing is wider than the screen, and there is one main heading."""
        self.seen += 1
        self.page.wait_for_load_state("load")
        take_screenshot(self.page, f"account {self.seen:02}")
        assert_accessible(self.page)
        assert self.page.locator("h1").count() == 1, self.page.url


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_from_sign_up_to_a_new_password(live_server: Any, redis: Redis, size: Any, language: str) -> None:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        context = browser.new_context(viewport=size, locale=language, base_url=live_server.url)
        walk = Walk(context.new_page())
        page = walk.page
        walk.go("/sales/")
        walk.press("a[href='/account/']")
        walk.press("a[href^='/account/signup/']")
        walk.fill(username="ada", email="ada@example.com", password1="short")
        assert page.locator("#id_password1[aria-invalid]").count() == 1
        walk.fill(username="ada", email="ada@example.com", password1="the right one")
        walk.go(link())
        walk.press("main form .button")
        walk.fill(login="ada@example.com", password="wrong")
        walk.fill(login="ada@example.com", password="the right one")
        walk.press("a[href='/account/']")
        walk.press("a[href='/account/email/']")
        walk.fill(email="new@example.com")
        walk.go("/account/password/")
        walk.go("/account/reauthenticate/")
        walk.go("/account/")
        walk.press("form[action='/account/logout/'] button")
        walk.go("/account/login/")
        walk.press("a[href='/account/password/reset/']")
        walk.fill(email="ada@example.com")
        walk.go(link())
        walk.fill(password1="a new one 2026", password2="a new one 2026")
        walk.press("main a.button")
        walk.fill(login="ada", password="a new one 2026")
        walk.go("/account/")
        assert page.locator(".account .proven").count() == 1
        walk.press("form[action='/account/sign-out-everywhere/'] button")
        assert page.locator(".news .success").count() == 1
        walk.go("/account/confirm/nonsense/")
        walk.go("/account/password/reset/1-nonsense/")
        browser.close()
    assert walk.complaints == []
