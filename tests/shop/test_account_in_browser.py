"""From sign-up to a new password in Chromium, at the widths of a phone and a desktop, in both languages, with axe."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.browser import DESKTOP, IN_BROWSER, PHONE
from tests.shop.browser_support import Enter, assert_accessible
from tests.shop.test_account_pages import link

# The shop runs in this process, so that the test can read its mails.
pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("live_server")]


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_from_sign_up_to_a_new_password(enter: Enter, size: Any, language: str) -> None:
    page = enter(None, language, viewport=size, ignored=()).new_page()
    seen = count(1)

    def check() -> None:
        page.wait_for_load_state("load")
        assert_accessible(page, f"account {next(seen):02}")
        assert page.locator("h1").count() == 1, page.url

    def go(path: str) -> None:
        page.goto(path)
        check()

    def press(button: str) -> None:
        with page.expect_navigation():
            page.locator(button).click()
        check()

    def fill(**fields: str) -> None:
        for name, value in fields.items():
            page.locator(f"[name={name}]").fill(value)
        press("form.form .button >> nth=0")

    go("/sales/")
    press("a[href='/account/']")
    press("a[href^='/account/signup/']")
    fill(username="ada", email="ada@example.com", password1="short")
    assert page.locator("#id_password1[aria-invalid]").count() == 1
    fill(username="ada", email="ada@example.com", password1="the right one")
    go(link())
    press("main form .button")
    fill(login="ada@example.com", password="wrong")
    fill(login="ada@example.com", password="the right one")
    press("a[href='/account/']")
    press("a[href='/account/email/']")
    fill(email="new@example.com")
    go("/account/password/")
    go("/account/reauthenticate/")
    go("/account/")
    press("form[action='/account/logout/'] button")
    go("/account/login/")
    press("a[href='/account/password/reset/']")
    fill(email="ada@example.com")
    go(link())
    fill(password1="a new one 2026", password2="a new one 2026")
    press("main a.button")
    fill(login="ada", password="a new one 2026")
    go("/account/")
    assert page.locator(".account .proven").count() == 1
    press("form[action='/account/sign-out-everywhere/'] button")
    assert page.locator(".news .success").count() == 1
    go("/account/confirm/nonsense/")
    go("/account/password/reset/1-nonsense/")
