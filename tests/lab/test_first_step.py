"""The pages of all rungs begin at step 0: nothing has happened yet, and the reader goes on step by step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Route

from lab.claims import witness
from lab.ladder.catalogue import LADDER
from lab.site.pages import example_run
from lab.site.pages.first_path import STATIONS
from lab.workloads.registry import can_play
from shop.runtime.settings import BASE_DIR
from tests.browser import needs_chromium
from tests.lab.test_browser import Open, open_page

__all__ = ["open_page"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis", "sandboxes", "_only_witnesses")]

STATE = """
    (player) => {
      const shown = (part) => [...player.querySelectorAll(part)].filter((each) => each.checkVisibility()).length;
      return {
        count: player.querySelector("output").textContent,
        later: player.querySelectorAll(".steps > li.later").length,
        states: shown(".panel"),
        ends: shown(".end"),
        nothing: shown(".before"),
      };
    }
"""
"""Returns what the player of a rung's page shows."""


@pytest.fixture
def _only_witnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show the pages without verdicts, because checking whether they are out of date takes seconds."""
    monkeypatch.setattr(witness, "verdict", lambda slug: None)
    monkeypatch.setattr(witness, "stress", lambda slug: None)
    monkeypatch.setattr(example_run, "_cache", {})


def not_at_step_0(page: Any, slugs: Sequence[str]) -> dict[str, Any]:
    """Return the state of each player that does not begin at step 0, by the slug of its rung."""
    found = {}
    for slug in slugs:
        page.goto(f"/lab/rungs/{slug}/", wait_until="domcontentloaded")
        steps = page.locator("#player .steps > li").count()
        assert steps > 0, slug
        state = page.locator("#player").evaluate(STATE)
        if state != {"count": f"0 / {steps}", "later": steps, "states": 0, "ends": 0, "nothing": 1}:
            found[slug] = state
    return found


PARTS = 6
"""Number of tests that share the rungs, because the page of each takes a second or two."""


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("part", range(PARTS))
def test_every_rung_with_a_run_begins_at_step_0(open_page: Open, part: int) -> None:
    slugs = [slug for slug, entry in LADDER.items() if can_play(entry) or witness.trace(slug)]
    assert len(slugs) > 60
    assert not_at_step_0(open_page("/lab/essays/choosing-a-ttl/"), slugs[part::PARTS]) == {}


@pytest.mark.slow
@needs_chromium
def test_a_player_that_begins_at_the_first_step_is_found(open_page: Open) -> None:
    """Negative control."""
    page = open_page("/lab/essays/choosing-a-ttl/")
    page.route("**/player*.js", begin_at_the_first_step)
    assert list(not_at_step_0(page, ["no-lock", "renewal"])) == ["no-lock", "renewal"]


def begin_at_the_first_step(route: Route) -> None:
    script = Path(BASE_DIR, "lab/static/lab/player.js").read_text()
    assert script.count("let at = BEFORE;") == 1
    route.fulfill(body=script.replace("let at = BEFORE;", "let at = 0;"), content_type="text/javascript")


PLAYED = [f"/lab/rungs/{slug}/play/" for slug, entry in LADDER.items() if can_play(entry)]
FIRST = [f"/lab/first/{station.slug}/" for station in STATIONS]


def steps_taken(address: str) -> tuple[int, bool, bool]:
    """Return how many steps a page shows, whether it says that there is none, and whether it offers a choice."""
    page = Client().get(address).content.decode()
    steps = len(re.findall(r"<li data-panel=", page))
    return steps, "No client has taken a step yet. All of them wait for you." in page, 'class="choice' in page


@pytest.mark.slow
def test_every_page_on_which_the_reader_is_the_scheduler_begins_at_step_0() -> None:
    """Negative control: an address with a step."""
    assert {address: steps_taken(address) for address in (*PLAYED, *FIRST)} == dict.fromkeys(
        (*PLAYED, *FIRST), (0, True, True)
    )
    assert len(PLAYED) > 40
    assert [steps_taken(f"{address}?schedule=A") for address in (PLAYED[0], FIRST[0])] == [(1, False, True)] * 2
