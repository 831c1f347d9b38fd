"""The race and the comparison in Chromium: started, watched, sorted, by keyboard, on a phone and in the dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django_redis import get_redis_connection
from playwright.sync_api import expect

from lab.site.comparison import stored
from lab.site.race.run import Race, Racer
from locking import RedisLock
from tests.lab.comparison_support import STORED
from tests.lab.test_browser import Open, assert_good_for_everybody, open_page
from tests.lab.test_browser import pytestmark as in_chromium
from tests.waiting import wait_for

__all__ = ["open_page"]

pytestmark = [mark for mark in in_chromium if mark.name != "usefixtures"]

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
    """Whatever raced is over before the next test."""
    yield
    lock = RedisLock(get_redis_connection("default"), "lab-race", ttl=10.0)
    wait_for(lambda: lock.acquire(blocking=False), "the race to end", timeout=60).release()


@pytest.fixture
def measured(redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps(STORED))
    monkeypatch.setattr(stored, "FILE", file)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_race_is_chosen_by_keyboard_and_watched_to_its_verdicts(open_page: Open) -> None:
    page = open_page("/lab/")
    page.get_by_role("link", name="The race").click()
    for chosen in ("redis-lock", "subtract-in-sql"):
        page.get_by_role("checkbox", name=chosen).focus()
        page.keyboard.press("Space")
        expect(page.get_by_role("checkbox", name=chosen)).not_to_be_checked()
    page.get_by_label("Units in stock").fill("30")
    page.get_by_label("Buyers at the same time").fill("20")
    page.keyboard.press("Enter")
    status, racers = page.get_by_role("status"), page.locator(".racer")
    expect(racers).to_have_count(2)
    expect(status).to_contain_text("is selling", timeout=60_000)
    expect(status).to_have_text("The race is over: 1 held, 1 did not.", timeout=60_000)
    flawed, sound = racers.nth(0), racers.nth(1)
    expect(flawed.locator(".verdict")).to_contain_text("sold that never existed")
    expect(sound.locator(".verdict")).to_contain_text("conserved")
    expect(sound.locator(".figure").first).to_have_text("30 sold of 30")
    # As far as the mark of the stock, and beyond it only where more was sold.
    assert width(sound, ".sold") == width(flawed, ".sold") == mark(sound)
    assert width(flawed, ".over") > 0
    expect(sound.locator(".over")).to_have_count(0)


def width(racer: Any, part: str) -> int:
    return round(racer.locator(part).evaluate("part => part.getBoundingClientRect().width"))


def mark(racer: Any) -> int:
    return round(racer.locator(".stock").evaluate("line => line.x1.baseVal.value"))


@pytest.mark.usefixtures("one_at_a_time")
def test_without_scripts_a_race_is_watched_too(open_page: Open) -> None:
    ENDED.keep()
    page = open_page(f"/lab/race/{ENDED.id}/", java_script_enabled=False)
    expect(page.get_by_role("status")).to_have_text("The race is over: 1 held, 2 did not.")


@pytest.mark.usefixtures("measured")
def test_the_comparison_is_sorted_by_a_click_and_turned_round_by_another(open_page: Open) -> None:
    page = open_page("/lab/comparison/")
    table = page.get_by_role("region", name="Locks")
    assert order(table) == ["thread", "redis", "redis-py"]
    table.get_by_role("link", name="Wait p50").click()
    expect(table.locator("[aria-sort=ascending]")).to_have_text("Wait p50 ms ▲")
    assert order(table) == ["thread", "redis", "redis-py"]
    table.get_by_role("link", name="Crash recovery").focus()
    page.keyboard.press("Enter")
    expect(table.locator("[aria-sort=ascending]")).to_contain_text("Crash recovery")
    table.get_by_role("link", name="Crash recovery").click()
    expect(table.locator("[aria-sort=descending]")).to_contain_text("Crash recovery")
    # What has no figure comes last, whichever way round.
    assert order(table) == ["redis-py", "redis", "thread"]
    chart = page.locator("#locks figure")
    expect(chart).to_contain_text("Crash recovery")
    assert chart.locator("span").all_inner_texts() == ["redis-py", "redis", "thread"]
    widest, narrower, none = (round(float(bar.get_attribute("width")[:-1])) for bar in chart.locator(".sold").all())
    assert (widest, narrower, none) == (100, 99, 0)


@pytest.mark.usefixtures("measured", "stored")
def test_a_rung_leads_to_its_row_and_what_is_argued_with_it_too(open_page: Open) -> None:
    page = open_page("/lab/rungs/guarded-update/")
    page.get_by_role("link", name="guarded-update", exact=True).click()
    row = page.locator("tr:target")
    expect(row).to_contain_text("1,250")
    expect(row).to_be_in_viewport()
    section = page.get_by_role("region", name="Which to choose")
    section.get_by_role("link", name="redis-lock").click()
    expect(page.locator("tr:target")).to_contain_text("3.01")
    page.locator("tr:target").get_by_role("link").click()
    expect(page).to_have_url(re.compile("/lab/rungs/redis-lock/$"))


def order(table: Any) -> list[str]:
    return [said.split()[0] for said in table.locator("tbody th").all_inner_texts()]


@pytest.mark.usefixtures("measured", "one_at_a_time")
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_axe_finds_nothing_and_no_page_is_wider_than_the_screen(open_page: Open, language: str) -> None:
    ENDED.keep()
    page = open_page("/lab/race/", language=language)
    for address in ("/lab/race/", f"/lab/race/{ENDED.id}/", "/lab/comparison/"):
        page.goto(address)
        assert_good_for_everybody(page)
