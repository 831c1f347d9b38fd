"""The race and the comparison in Chromium: starting and watching, by keyboard, on a phone and in dark mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect

from lab.site.race.state import Race, Racer
from tests.lab.test_browser import Open, assert_accessible, open_page
from tests.lab.test_browser import pytestmark as in_chromium
from tests.lab.test_race import wait_until_no_race_runs

__all__ = ["open_page"]

pytestmark = [pytest.mark.slow, *(mark for mark in in_chromium if mark.name != "usefixtures")]

RESULT = {"stock": 100, "clients": 50, "refused": 80, "errors": 0, "missing": 0, "unserved": 0}
BROKEN = RESULT | {"sold": 120, "on_hand": -20, "oversold": 20, "orders_per_s": 210.0, "p50_ms": 80.0, "p99_ms": 400.0}
SOUND = RESULT | {"sold": 100, "on_hand": 0, "oversold": 0, "orders_per_s": 190.5, "p50_ms": 60.2, "p99_ms": 310.9}
ENDED = Race(
    "0b9c7a5e-5f0e-4f5c-9d62-9d1c6c1f7a11",
    clients=50,
    stock=100,
    racers=[
        Racer("subtract-in-sql", wanted=200, answered=120, result=BROKEN),
        Racer("session-lock", wanted=200, answered=100, result=SOUND, holds=True),
        Racer("lua", wanted=200, error="nobody was served"),
    ],
    over=True,
)


@pytest.fixture
def one_at_a_time(redis: Any) -> Iterator[None]:
    """Wait until the test's race has ended, before the next test starts."""
    yield
    wait_until_no_race_runs()


@pytest.mark.usefixtures("one_at_a_time")
def test_a_race_is_started_by_keyboard_and_watched_to_its_end(open_page: Open) -> None:
    page = open_page("/lab/")
    page.get_by_role("link", name="The race").click()
    for chosen in ("redis-lock", "subtract-in-sql"):
        page.get_by_role("checkbox", name=chosen).focus()
        page.keyboard.press("Space")
        expect(page.get_by_role("checkbox", name=chosen)).not_to_be_checked()
    page.get_by_label("Units in stock").fill("30")
    page.get_by_label("Customers at the same time").fill("20")
    page.keyboard.press("Enter")
    status, racers = page.get_by_role("status"), page.locator(".racer")
    expect(racers).to_have_count(2)
    expect(status).to_contain_text("is selling", timeout=60_000)
    expect(status).to_have_text("The race is over: 1 held, 1 did not.", timeout=60_000)
    flawed, sound = racers.nth(0), racers.nth(1)
    expect(flawed.locator(".verdict")).to_contain_text("sold beyond the stock")
    expect(sound.locator(".verdict")).to_contain_text("conserved")
    expect(sound.locator(".figure").first).to_have_text("30 sold of 30")
    # The bars end at the mark of the stock. Only oversold units are drawn beyond the mark.
    stock_mark = round(sound.locator(".stock").evaluate("line => line.x1.baseVal.value"))
    assert width(sound, ".sold") == width(flawed, ".sold") == stock_mark
    assert width(flawed, ".over") > 0
    expect(sound.locator(".over")).to_have_count(0)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_link_keeps_the_focus_while_the_race_runs(open_page: Open) -> None:
    replace(ENDED, over=False).save()
    page = open_page(f"/lab/race/{ENDED.id}/")
    link = page.locator(".racer a").first
    link.focus()
    # The second response is asked for after the bars of the first one are shown.
    for _ in range(2):
        with page.expect_response("**/bars/"):
            pass
    expect(link).to_be_focused()


def width(racer: Any, part: str) -> int:
    return round(racer.locator(part).evaluate("part => part.getBoundingClientRect().width"))


@pytest.mark.usefixtures("redis", "measured")
@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_text_of_a_curve_is_inside_its_picture(open_page: Open, language: str, width: int) -> None:
    page = open_page("/lab/comparison/", language=language)
    page.set_viewport_size({"width": width, "height": 900})
    pictures = page.locator(".lines svg")
    expect(pictures).to_have_count(6)
    for picture in pictures.all():
        outer = picture.bounding_box()
        texts = picture.locator("text").all()
        assert texts
        for text in texts:
            inner = text.bounding_box()
            assert outer["x"] <= inner["x"], text.text_content()
            assert inner["x"] + inner["width"] <= outer["x"] + outer["width"], text.text_content()
            assert outer["y"] <= inner["y"] + 1, text.text_content()
            assert inner["y"] + inner["height"] <= outer["y"] + outer["height"] + 1, text.text_content()


@pytest.mark.usefixtures("redis", "measured", "one_at_a_time")
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_race_comparison_and_choice_are_accessible(open_page: Open, language: str) -> None:
    ENDED.save()
    page = open_page("/lab/race/", language=language)
    chosen = "/lab/choice/?where=machines&work=statement&mistake=money&servers=redis&heat=many"
    for address in ("/lab/race/", f"/lab/race/{ENDED.id}/", "/lab/comparison/", "/lab/choice/", chosen):
        page.goto(address)
        assert_accessible(page)
