"""Chromium for tests: Playwright drives the installed browser."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"

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
