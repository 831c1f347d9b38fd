"""Chromium for tests: Playwright drives the installed browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

from tests.waiting import WAIT_TIMEOUT

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
SCREENSHOTS = os.environ.get("SCREENSHOTS", "")
"""Folder into which tests store pictures of the pages that they open. If empty, they store none."""
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists() and not os.environ.get("CI"),
    reason="Chromium is not installed; on Debian: apt-get install chromium",
)
"""Skips a test where Chromium is not installed. With `CI` set, the test fails there instead."""
IN_BROWSER = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis"),
    needs_chromium,
]
"""Marks of tests that visit the shop in Chromium."""


def launch(playwright: Playwright) -> Browser:
    """Start the installed Chromium.

    Playwright runs an event loop in this thread. A test that also queries the database in this thread must set
    DJANGO_ALLOW_ASYNC_UNSAFE.
    """
    return playwright.chromium.launch(executable_path=CHROMIUM)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium for a test that also queries the database."""
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        expect.set_options(timeout=WAIT_TIMEOUT * 1000)
        browser = launch(playwright)
        yield browser
        browser.close()


def take_screenshot(page: Page, name: str, *, full_page: bool = True) -> None:
    """Store a picture of a page in `SCREENSHOTS`, if that is set.

    The name of the file ends with the language and the width of the page, and with `dark` if its colours are dark:
    `sale open-zh-hans-390.png`.

    Args:
        name: what the page shows. It is unique among all tests.
        full_page: whether the picture also shows what is below the window.
    """
    if not SCREENSHOTS:
        return
    language, width, is_dark = page.evaluate(
        "[document.documentElement.lang, innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]"
    )
    file = "-".join([name, language, str(width), *(["dark"] if is_dark else [])])
    page.screenshot(path=Path(SCREENSHOTS) / f"{file}.png", full_page=full_page)
