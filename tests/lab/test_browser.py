"""The lab as it is used, in Chromium: climbed, played, won, not won, by keyboard, on a phone and in the dark."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.lab.conftest import WITNESSES

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
DESKTOP, PHONE = {"width": 1366, "height": 900}, {"width": 390, "height": 844}
WITNESS = WITNESSES["get-compare-del"].schedule

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis", "stored"),
    pytest.mark.skipif(
        not Path(CHROMIUM).exists() and not os.environ.get("CI"),
        reason="Chromium is not installed; on Debian: apt-get install chromium",
    ),
]

Open = Callable[..., Page]


@pytest.fixture
def open_page(live_server: Any) -> Iterator[Open]:
    """Opens pages of the lab. At the end of the test no page may have complained on its console."""
    complaints: list[str] = []
    with chromium() as browser:

        def opened(address: str, viewport: Any = None, language: str = "en", **more: Any) -> Page:
            context = browser.new_context(
                viewport=viewport or DESKTOP, locale=language, base_url=live_server.url, **more
            )
            context.add_init_script(path=AXE)
            page = context.new_page()
            page.on("console", lambda said: complaints.append(f"{page.url}: {said.text}"))
            page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
            page.goto(address)
            return page

        yield opened
    assert complaints == []


@contextmanager
def chromium() -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        try:
            yield browser
        finally:
            browser.close()


def choose(page: Page, choice: str) -> None:
    """Choose, as a visitor does, and wait for what it leads to."""
    before = page.url
    page.locator(".choice", has=page.get_by_text(choice, exact=True)).click()
    page.wait_for_url(lambda url: url != before)


# A lesson


def test_a_learner_climbs_from_the_ladder_by_the_links_to_the_next_rung(open_page: Open) -> None:
    page = open_page("/lab/")
    page.get_by_role("link", name="No lock", exact=True).click()
    titles = []
    for _ in range(3):
        titles.append(page.locator("h1").inner_text())
        page.locator("a[rel=next]").click()
    assert titles == ["1 No lock", "2 Merge without a lock", "3 Thread lock"]


def test_a_witness_is_stepped_through_with_the_keyboard(open_page: Open) -> None:
    page = open_page("/lab/rungs/get-compare-del/")
    current, standing = page.locator(".steps [aria-current]"), page.locator(".panel:not([hidden])")
    expect(page.get_by_text("B and C are inside at the same time.")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(current).to_contain_text("DEL rung:stock")
    expect(page.locator(".line.current")).to_contain_text("delete")
    expect(page.get_by_text("B and C are inside at the same time.")).to_be_hidden()
    for _ in WITNESS:
        page.keyboard.press("ArrowLeft")
    expect(current).to_contain_text("SET rung:stock")
    expect(page.locator("output")).to_have_text(f"1 / {len(WITNESS)}")
    expect(standing.locator("dd").first).to_have_text("A")
    for _ in WITNESS:
        page.keyboard.press("ArrowRight")
    expect(standing.locator("dd").first).to_have_text("B + C")


def test_stepping_asks_the_server_for_nothing(open_page: Open) -> None:
    page = open_page("/lab/rungs/get-compare-del/")
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Start").click()
    for _ in WITNESS[1:]:
        page.get_by_role("button", name="Forward").click()
    expect(page.locator("output")).to_have_text(f"{len(WITNESS)} / {len(WITNESS)}")
    assert asked == []


def test_a_witness_plays_by_itself_to_its_end(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/")
    page.locator("body").press("Space")
    expect(page.locator("output")).to_have_text("1 / 4")
    expect(page.get_by_role("button", name="Play")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("output")).to_have_text("4 / 4", timeout=10_000)
    expect(page.get_by_role("button", name="Play")).to_have_attribute("aria-pressed", "false")


# The scheduler


def test_a_scheduler_breaks_a_flawed_rung_and_not_the_next_with_the_same_choices(open_page: Open) -> None:
    page = open_page("/lab/rungs/get-compare-del/")
    page.get_by_role("link", name="You are the scheduler").click()
    for choice in WITNESS:
        choose(page, choice)
    expect(page.get_by_role("heading", name="You have broken it")).to_be_visible()
    expect(page.get_by_text("B and C are inside at the same time.")).to_be_visible()
    page.get_by_role("link", name=re.compile("Replay on the next rung")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("WATCH")
    expect(page.get_by_role("heading", name="You have broken it")).to_have_count(0)
    expect(page.locator(".steps")).to_contain_text("The TTL passes before the release")


def test_a_scheduler_cannot_break_a_sound_rung_and_is_told_why(open_page: Open) -> None:
    page = open_page("/lab/rungs/renewal/play/")
    choose(page, "A")
    choose(page, "B")
    choose(page, "expiry")
    while page.locator(".choice").count():
        choose(page, page.locator(".choice b").first.inner_text())
    expect(page.get_by_text("Not broken.")).to_be_visible()
    expect(page.get_by_text("It claims to survive each of these")).to_be_visible()
    page.get_by_role("link", name="The lesson tells why.").click()
    expect(page.get_by_role("heading", name="The lesson")).to_be_in_viewport()


def test_undo_and_the_buttons_of_the_browser_lead_back(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/play/")
    choose(page, "A")
    one = page.url
    choose(page, "B")
    page.get_by_role("link", name="Undo").click()
    page.wait_for_url(one)
    expect(page.locator(".steps li")).to_have_count(1)
    page.go_back()
    expect(page.locator(".steps li")).to_have_count(2)
    page.reload()
    expect(page.locator(".steps li")).to_have_count(2)


def test_choices_are_made_with_the_keyboard_alone(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/play/")
    page.locator("#choose-b").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".steps li")).to_have_count(1)
    expect(page.locator("#choose-b")).to_be_focused()
    page.keyboard.press("Enter")
    # B is done: who had his button in hand is told what came of it.
    expect(page.locator(".steps li")).to_have_count(2)
    expect(page.locator("#status")).to_be_focused()


def test_the_lab_works_without_scripts(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/play/", java_script_enabled=False)
    for choice in ("A", "B", "B", "A"):
        choose(page, choice)
    expect(page.get_by_role("heading", name="You have broken it")).to_be_visible()
    page.goto("/lab/rungs/get-compare-del/")
    expect(page.get_by_text("B and C are inside at the same time.")).to_be_visible()
    expect(page.locator(".panel:not([hidden])")).to_have_count(1)


def test_the_language_is_switched_in_the_page(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/play/?schedule=A")
    page.get_by_role("button", name="简体中文").click()
    expect(page.get_by_role("heading", name="下一步轮到谁？")).to_be_visible()
    expect(page.locator(".steps li")).to_have_count(1)
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")


# For everybody

PAGES = {
    "the ladder": "/lab/",
    "a flawed rung": "/lab/rungs/get-compare-del/",
    "a sound rung": "/lab/rungs/renewal/",
    "a rung of the stock": "/lab/rungs/lock-under-the-wrong-isolation/",
    "a schedule": "/lab/rungs/get-compare-del/play/?schedule=A,A&clients=3",
    "a schedule that breaks it": f"/lab/rungs/get-compare-del/play/?schedule={','.join(WITNESS)}&clients=3",
    "an essay": "/lab/essays/choosing-a-ttl/",
}


def test_axe_finds_nothing_and_no_page_is_wider_than_the_screen(open_page: Open) -> None:
    page = open_page("/lab/")
    for address in PAGES.values():
        page.goto(address)
        if "player" in page.content():
            page.keyboard.press("ArrowLeft")
        assert_good_for_everybody(page)


def assert_good_for_everybody(page: Page) -> None:
    """axe finds nothing on a page that is open, and it is no wider than the screen: by day and by night."""
    for viewport, scheme in product((DESKTOP, PHONE), ("light", "dark")):
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme)
        page.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")  # a colour on its way is none
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, (page.url, viewport)
        found = page.evaluate("axe.run()")["violations"]
        said = [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found]
        assert said == [], (page.url, viewport, scheme)
