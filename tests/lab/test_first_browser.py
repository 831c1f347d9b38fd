"""The learner in Chromium: the first ten minutes by keyboard, stored progress, and the filter of the ladder page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lab.site.pages.first_path import STATIONS
from tests.lab.test_browser import Open, open_page, press
from tests.lab.test_browser import pytestmark as in_chromium

__all__ = ["open_page"]

pytestmark = [pytest.mark.slow, *in_chromium]

NO_STORAGE = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('forbidden'); } });"
NO_LOCK, SETNX = STATIONS[0], STATIONS[1]


def test_the_first_station_is_played_by_keyboard_and_remembered(open_page: Open) -> None:
    page = open_page("/lab/")
    resume = page.get_by_role("link", name="Continue")
    expect(resume).to_be_hidden()
    page.get_by_role("link", name="Begin").click()
    page.get_by_role("link", name="Begin").click()
    expect(page.get_by_role("heading", name=NO_LOCK.goals[0].text)).to_be_visible()
    press(page, "A", "B")
    expect(page.get_by_role("heading", name=NO_LOCK.goals[1].text)).to_be_visible()
    expect(page.locator(".reached li")).to_have_count(1)
    press(page, "B")
    page.goto("/lab/")
    expect(page.locator("[data-done-mark=no-lock]")).to_be_hidden()
    resume.click()
    expect(page.locator(".steps li")).to_have_count(3)
    press(page, "A")
    expect(page.get_by_role("heading", name="You broke it")).to_be_visible()
    page.goto("/lab/")
    expect(page.locator("[data-done-mark=no-lock]")).to_be_visible()
    expect(page.locator("[data-done-mark=setnx]")).to_be_hidden()
    resume.click()
    expect(page.get_by_role("heading", name=SETNX.goals[0].text)).to_be_visible()


@pytest.mark.parametrize("storage", ["forbidden", "spoiled", "no scripts"])
def test_the_path_is_walked_without_storage(open_page: Open, storage: str) -> None:
    page = open_page("/lab/first/", java_script_enabled=storage != "no scripts")
    if storage == "forbidden":
        page.add_init_script(NO_STORAGE)
    elif storage == "spoiled":
        page.evaluate("""localStorage.setItem("last-unit-lab", '{"done": 7, "at": [')""")
    page.goto("/lab/first/")
    expect(page.get_by_role("link", name="Continue")).to_be_hidden()
    page.get_by_role("link", name="Begin").click()
    for station in STATIONS[:2]:
        for goal in station.goals:
            expect(page.get_by_role("heading", name=goal.text)).to_be_visible()
            page.locator("#hint summary").click()
            page.get_by_role("link", name="Show me").click()
        expect(page.get_by_text(station.moral)).to_be_visible()
        page.get_by_role("link", name="Next station").click()
    expect(page.get_by_role("heading", name=STATIONS[2].goals[0].text)).to_be_visible()


def test_a_rung_that_was_broken_is_marked_on_the_ladder(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/play/?schedule=A,A,B,B")
    page.goto("/lab/")
    expect(page.locator("[data-done-mark=no-lock]")).to_be_hidden()
    page.goto("/lab/rungs/no-lock/play/?schedule=A,B,B")
    press(page, "A")
    page.goto("/lab/")
    expect(page.locator("[data-done-mark=no-lock]")).to_be_visible()


def test_the_ladder_is_filtered_while_typing(open_page: Open) -> None:
    page = open_page("/lab/")
    requests: list[str] = []
    page.wait_for_load_state("networkidle")
    page.on("request", lambda request: requests.append(request.url))
    rungs, found = page.locator(".rung:not([hidden])"), page.locator("#found")
    everything = rungs.count()
    page.get_by_label("Words").type("no-lock")
    expect(found).to_have_text(f"1 of {everything} rungs")
    expect(page.locator(".track:not([hidden])")).to_have_count(1)
    page.get_by_label("Words").fill("")
    page.get_by_label("Track", exact=True).select_option("stock")
    page.get_by_label("Claim", exact=True).select_option("sound")
    sound = rungs.count()
    assert 0 < sound < everything
    # Ignore the icon: Chromium requests it again for each new address.
    assert [url for url in requests if not url.endswith("icon.svg")] == []
    page.reload()
    expect(rungs).to_have_count(sound)
    expect(page.get_by_label("Claim", exact=True)).to_have_value("sound")
    page.get_by_label("Words").fill("no rung has these words")
    expect(found).to_have_text(f"0 of {everything} rungs")
    back = page.get_by_role("link", name="Show all rungs")
    back.click()
    expect(rungs).to_have_count(everything)
    expect(back).to_be_hidden()
    expect(page.get_by_label("Words")).to_be_focused()


def test_the_ladder_is_filtered_without_scripts(open_page: Open) -> None:
    page = open_page("/lab/", java_script_enabled=False)
    page.get_by_label("Words").fill("no-lock")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".rung:not([hidden])")).to_have_count(1)
    expect(page.get_by_role("heading", name="No lock that all clients share")).to_be_visible()
    expect(page.get_by_role("heading", name="The holder dies")).to_be_hidden()
    expect(page.locator(".track:visible")).to_have_count(1)
    page.get_by_label("Words").fill("no rung has these words")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".track:visible")).to_have_count(0)
    page.get_by_role("link", name="Show all rungs").click()
    expect(page.locator(".track:visible")).to_have_count(2)
