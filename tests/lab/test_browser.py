"""The lab in Chromium: reading, playing, the first path, by keyboard, without scripts, on a phone and in dark mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from lab.ladder.catalogue import LADDER
from lab.site.pages.first_path import STATIONS
from tests.browser import DESKTOP, PHONE, launch, needs_chromium
from tests.lab.conftest import WITNESSES

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WITNESS = WITNESSES["get-compare-del"].schedule
WHY = "B and C are inside at the same time."

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis", "stored"),
    needs_chromium,
]

Open = Callable[..., Page]


@pytest.fixture
def open_page(live_server: Any) -> Iterator[Open]:
    """Open pages of the lab. When the test ends, no page may have written to its console."""
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = launch(playwright)

        def opened(address: str, language: str = "en", **options: Any) -> Page:
            context = browser.new_context(viewport=DESKTOP, locale=language, base_url=live_server.url, **options)
            context.add_init_script(path=AXE)
            page = context.new_page()
            page.on("console", lambda message: complaints.append(f"{page.url}: {message.text}"))
            page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
            page.goto(address)
            return page

        try:
            yield opened
        finally:
            browser.close()
    assert complaints == []


def press(page: Page, *choices: str) -> None:
    """Press these choices with the keyboard, and wait for the next page after each one."""
    for choice in choices:
        before = page.url
        page.locator(".choice", has=page.get_by_text(choice, exact=True)).focus()
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url, before=before: url != before)


def test_a_witness_is_stepped_through_without_a_request(open_page: Open) -> None:
    page = open_page("/lab/rungs/get-compare-del/")
    current, state = page.locator(".steps [aria-current]"), page.locator(".panel:not([hidden])")
    page.wait_for_load_state("networkidle")
    requests: list[str] = []
    page.on("request", lambda request: request.url.endswith("icon.svg") or requests.append(request.url))
    expect(page.locator("output")).to_have_text(f"0 / {len(WITNESS)}")
    expect(page.get_by_text("Nothing has happened yet.")).to_be_visible()
    expect(state).to_have_count(0)
    expect(page.locator("#player .steps > li.later")).to_have_count(len(WITNESS))
    expect(page.get_by_text(WHY)).to_be_hidden()
    for _ in WITNESS:
        page.keyboard.press("ArrowRight")
    expect(page.get_by_text(WHY)).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(current).to_contain_text("DEL rung:stock")
    expect(page.locator(".line.current")).to_contain_text("delete")
    expect(page.get_by_text(WHY)).to_be_hidden()
    for _ in WITNESS[:-2]:
        page.keyboard.press("ArrowLeft")
    expect(current).to_contain_text("SET rung:stock")
    expect(page.locator("output")).to_have_text(f"1 / {len(WITNESS)}")
    expect(state.locator("dd").first).to_have_text("A")
    for _ in WITNESS:
        page.keyboard.press("ArrowRight")
    expect(state.locator("dd").first).to_have_text("B + C")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Next").click()
    expect(page.locator("output")).to_have_text(f"1 / {len(WITNESS)}")
    assert requests == []


def test_a_witness_plays_to_its_end(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/")
    button = page.get_by_role("button", name="Play")
    expect(page.locator("output")).to_have_text("0 / 4")
    page.locator("body").press("Space")
    expect(page.locator("output")).to_have_text("1 / 4")
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.locator("output")).to_have_text("4 / 4", timeout=10_000)
    expect(button).to_have_attribute("aria-pressed", "false")


def test_choices_are_made_with_the_keyboard_and_the_browser_leads_back(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/play/")
    # After B's second step, its button is gone.
    for steps, focused in ((1, "#choose-b"), (2, "#status")):
        page.locator("#choose-b").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".steps li")).to_have_count(steps)
        expect(page.locator(focused)).to_be_focused()
    page.go_back()
    expect(page.locator(".steps li")).to_have_count(1)


def test_the_lab_works_without_scripts(open_page: Open) -> None:
    page = open_page("/lab/rungs/no-lock/play/", java_script_enabled=False)
    press(page, "A", "B", "B", "A")
    expect(page.get_by_role("heading", name="You broke it")).to_be_visible()
    page.goto("/lab/rungs/get-compare-del/")
    expect(page.get_by_text(WHY)).to_be_visible()
    expect(page.locator(".panel:not([hidden])")).to_have_count(1)


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


def test_the_ladder_is_filtered_while_typing(open_page: Open) -> None:
    page = open_page("/lab/")
    requests: list[str] = []
    page.wait_for_load_state("networkidle")
    page.on("request", lambda request: requests.append(request.url))
    rungs, found = page.locator(".rung:visible"), page.locator("#found")
    everything = rungs.count()
    page.get_by_label("Words").type("no-lock")
    expect(found).to_have_text(f"1 of {everything} rungs")
    expect(page.locator(".track:visible")).to_have_count(1)
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


PAGES = (
    "/lab/",
    "/lab/rungs/get-compare-del/",
    "/lab/rungs/renewal/",
    "/lab/rungs/lock-under-the-wrong-isolation/",
    "/lab/rungs/get-compare-del/play/?schedule=A,A&clients=3",
    f"/lab/rungs/get-compare-del/play/?schedule={','.join(WITNESS)}&clients=3",
    "/lab/essays/choosing-a-ttl/",
    "/lab/?track=locks",
    "/lab/first/",
    "/lab/first/no-lock/",
    "/lab/first/fence/?schedule=A,A&clients=2",
    f"/lab/first/no-lock/?schedule={','.join(STATIONS[0].schedule)}&clients=2",
)
SCHEMES = ("light", "dark")


@pytest.mark.parametrize(("language", "schemes"), [("en", SCHEMES), ("zh-CN", SCHEMES[:1])])
def test_the_pages_are_accessible(open_page: Open, language: str, schemes: Sequence[Any]) -> None:
    page = open_page("/lab/", language)
    for address in PAGES:
        page.goto(address)
        if "player" in page.content():
            page.keyboard.press("ArrowLeft")
        assert_accessible(page, schemes)


def assert_accessible(page: Page, schemes: Sequence[Any] = SCHEMES) -> None:
    """Check that axe reports nothing and that the page fits the width of each screen, light and dark."""
    for viewport, scheme in product((DESKTOP, PHONE), schemes):
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme)
        # Wait for animations, so that no colour is still changing.
        page.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, (page.url, viewport)
        violations = page.evaluate("axe.run()")["violations"]
        found = [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in violations]
        assert found == [], (page.url, viewport, scheme)


LINES = """
    [...document.querySelectorAll(".ladder li")].map((row) =>
      Math.floor(row.getBoundingClientRect().height / parseFloat(getComputedStyle(row.querySelector("h4")).lineHeight)))
"""
"""Returns the number of lines of each row of the ladder."""


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_a_row_of_the_ladder_is_one_line_and_two_on_a_phone(open_page: Open, language: str) -> None:
    """A row shows its flaw as far as it fits. An opened row shows the whole flaw. Control: it has more lines."""
    page = open_page("/lab/", language)
    row = page.locator("#level-no-lock + .ladder li").first
    flaw, facts = row.locator(".flaw"), row.locator(".facts")
    for viewport, most in ((DESKTOP, 1), (PHONE, 2)):
        page.set_viewport_size(viewport)  # type: ignore[arg-type]
        lines = page.evaluate(LINES)
        assert len(lines) == len(LADDER)
        assert max(lines) <= most, viewport
        expect(flaw).to_be_visible(visible=viewport is DESKTOP)
        expect(facts).to_be_hidden()
        row.locator("summary").click()
        expect(flaw).to_be_visible()
        expect(facts).to_be_visible()
        assert flaw.evaluate("cut => cut.scrollWidth - cut.clientWidth") == 0
        assert page.evaluate(LINES)[0] > most
        row.locator("summary").click()


def test_a_long_run_is_not_cut_on_a_phone(open_page: Open) -> None:
    """On a phone, the box of a long run shows the whole picture. Control: on a desktop, the box cuts the picture."""
    page = open_page(f"/lab/rungs/setnx/play/?clients=2&schedule=A,crash A{',B' * 20}")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    hidden = "(box => box.scrollHeight - box.clientHeight)(document.querySelector('.lanes-and-steps'))"
    assert page.locator(".steps li").count() > 20
    assert page.evaluate(hidden) == 0
    page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    assert page.evaluate(hidden) > 0


def test_on_a_phone_each_step_and_the_buttons_stay_in_view(open_page: Open) -> None:
    page = open_page("/lab/rungs/get-compare-del/")
    page.set_viewport_size({"width": 390, "height": 400})
    button = page.get_by_role("button", name="Next")
    for _ in WITNESS:
        button.click()
        expect(page.locator(".steps [aria-current]")).to_be_in_viewport(ratio=1)
        expect(button).to_be_in_viewport(ratio=1)
