"""From sign-up to a new password in Chromium, at the widths of a phone and a desktop, in both languages, with axe."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser import DESKTOP, IN_BROWSER, PHONE
from tests.shop.browser_support import Enter, assert_accessible
from tests.shop.test_account_pages import link

# The shop runs in this process, so that the test can read its mails.
pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("live_server")]


class Walk:
    """A visitor in Chromium, with checks of each page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.seen = 0

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
        assert_accessible(self.page, f"account {self.seen:02}")
        assert self.page.locator("h1").count() == 1, self.page.url


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_from_sign_up_to_a_new_password(enter: Enter, size: Any, language: str) -> None:
    page = enter(None, language, viewport=size, ignored=()).new_page()
    walk = Walk(page)
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
