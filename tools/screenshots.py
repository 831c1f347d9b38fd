"""Renew the documentation's picture of a race: `.venv/bin/python tools/screenshots.py [FOLDER]`.

The script starts the shop with the lab in a temporary run folder, runs a race and photographs it with Chromium. With
FOLDER, it also stores pictures of the lab's pages in FOLDER: in both languages, 1280 and 390 pixels wide. Look at them
after a change of templates or styles.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "docs" / "images" / "race.png"
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
RACERS = ("compute-and-overwrite", "subtract-in-sql", "redis-lock", "guarded-update")
PAGES = {
    "ladder": "/lab/",
    "rung": "/lab/rungs/get-compare-del/",
    "sound-rung": "/lab/rungs/renewal/",
    "play": "/lab/rungs/get-compare-del/play/?schedule=A,A,A,A,late release,B,A&clients=3",
    "race-form": "/lab/race/",
    "comparison": "/lab/comparison/",
}
START_SECONDS = 60
RACE_SECONDS = 300
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""The environment variables that the shop inherits. DATABASE_URL is not among them: it may lead to a real shop, which
would be migrated."""


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with running_shop() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_context(
            base_url=address, locale="en", viewport={"width": 1000, "height": 700}, color_scheme="light"
        ).new_page()
        watch_a_race(page)
        IMAGE.parent.mkdir(parents=True, exist_ok=True)
        page.locator("main").screenshot(path=IMAGE)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for language in ("en", "zh-CN"):
                for width in (1280, 390):
                    context = browser.new_context(
                        base_url=address, locale=language, viewport={"width": width, "height": 900}
                    )
                    every_page = context.new_page()
                    for name, path in {**PAGES, "race": page.url.removeprefix(address)}.items():
                        every_page.goto(path)
                        every_page.screenshot(path=folder / f"{name}-{language}-{width}.png", full_page=True)
        browser.close()


def watch_a_race(page: Page) -> None:
    """Run a race of `RACERS` in the lab, always with 100 units and 50 customers, and return at its end."""
    page.goto("/lab/race/")
    for box in page.get_by_role("checkbox").all():
        box.set_checked(box.get_attribute("value") in RACERS)
    page.get_by_label("Units in stock").fill("100")
    page.get_by_label("Customers at the same time").fill("50")
    page.get_by_role("button", name="Start the race").click()
    page.get_by_text("The race is over").wait_for(timeout=RACE_SECONDS * 1000)


@contextmanager
def running_shop() -> Iterator[str]:
    """Run servers and the shop with the lab during the `with` block, yield the shop's address, and remove all data."""
    with tempfile.TemporaryDirectory(prefix="lu-") as run_folder:
        Path(run_folder).chmod(0o755)  # As root, the servers run as another user, who must reach the folder.
        environment = shop_environment(f"{run_folder}/run")

        def manage(*arguments: str) -> None:
            subprocess.run([sys.executable, "manage.py", *arguments], cwd=ROOT, env=environment, check=True)

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        manage("servers", "start")
        try:
            manage("migrate", "--verbosity", "0")
            command = [sys.executable, "manage.py", "serve", "--port", port]
            with subprocess.Popen(command, cwd=ROOT, env=environment) as shop:
                try:
                    wait_for_answer(f"http://127.0.0.1:{port}/lab/")
                    yield f"http://127.0.0.1:{port}"
                finally:
                    shop.terminate()
        finally:
            manage("servers", "stop", "--delete")


def shop_environment(run_folder: str) -> dict[str, str]:
    """Return the complete environment of the shop that is photographed."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**passed_on, "RUN_FOLDER": run_folder, "LAB_ENABLED": "1"}


def wait_for_answer(address: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(address, timeout=START_SECONDS)  # noqa: S310 - our own address
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    main()
