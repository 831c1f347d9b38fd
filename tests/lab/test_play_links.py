"""The game on every playable rung: it begins at step 0, and each link leads to a page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from django.test import Client

from lab.claims import witness
from lab.ladder.catalogue import LADDER
from lab.site.pages import example_run
from lab.site.pages.first_path import STATIONS
from lab.site.pages.play_session import CLIENT_COUNTS, MOST_CHOICES, PlaySession
from lab.workloads.registry import can_play

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.usefixtures("sandboxes")]


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_run, "_cache", {})


def links(reader: Client, address: str, page: str) -> list[str]:
    """Return the game's links on the page at `address`. Errors name `page`, which links to it."""
    response = reader.get(address)
    text = response.content.decode()
    words = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    assert response.status_code == 200, f"{address}, linked from {page}, answers {response.status_code}: {words}"
    found = re.findall(r'href="(/lab/rungs/[^"/]+/play/[^"]*)"', text)
    return [unescape(link) for link in dict.fromkeys(found)]


PLAYABLE = [slug for slug, entry in LADDER.items() if can_play(entry)]


@pytest.mark.parametrize("slug", PLAYABLE)
def test_every_link_of_the_game_leads_to_a_page(slug: str) -> None:
    reader, rung, start = Client(), f"/lab/rungs/{slug}/", PlaySession(slug, (), LADDER[slug].clients)
    # Skip links that are the same on every rung.
    counts = {replace(start, clients=clients).address for clients in CLIENT_COUNTS}
    pages = {rung: links(reader, rung, "/lab/"), start.address: links(reader, start.address, rung)}
    if (stored := witness.load(slug)) is not None:
        last = PlaySession(slug, stored.schedule[:-1][:MOST_CHOICES], stored.clients).address
        pages[last] = links(reader, last, rung)
    seen = {address: page for page, found in pages.items() for address in found}
    assert {start.address} < {*seen}
    for address in seen.keys() - counts - pages.keys():
        links(reader, address, seen[address])


def test_the_number_of_clients_can_be_changed() -> None:
    reader, start = Client(), PlaySession("no-lock", (), 2)
    assert {replace(start, clients=clients).address for clients in (3, 4)} < {*links(reader, start.address, "/lab/")}
    for clients in CLIENT_COUNTS:
        assert len(reader.get(replace(start, clients=clients).address).context["choices"]) == clients


def test_a_game_with_a_worker_can_be_played_to_its_end() -> None:
    reader, schedule = Client(), ["A", "W", "crash W"]
    while choices := reader.get(PlaySession("lua-queue", tuple(schedule), 2).address).context["choices"]:
        schedule.append(choices[0][0].name)
    page = reader.get(PlaySession("lua-queue", tuple(schedule), 2).address).content.decode()
    assert "Not broken." in page
    assert reader.get("/lab/rungs/lua/play/?schedule=W").status_code == 400


@pytest.mark.parametrize("first", [True, False], ids=["the path", "the ladder"])
def test_every_game_begins_at_step_0(first: bool) -> None:
    """Every game begins without a step. Negative control: an address with a step."""
    starts = (
        [f"/lab/first/{station.slug}/" for station in STATIONS]
        if first
        else [f"/lab/rungs/{slug}/play/" for slug in PLAYABLE]
    )
    assert {start: steps_taken(start) for start in starts} == dict.fromkeys(starts, (0, True, True))
    assert steps_taken(f"{starts[0]}?schedule=A") == (1, False, True)


def steps_taken(address: str) -> tuple[int, bool, bool]:
    """Return how many steps a page shows, whether it says that there is none, and whether it offers a choice."""
    page = Client().get(address).content.decode()
    steps = len(re.findall(r"<li data-panel=", page))
    return steps, "No client has taken a step yet. All of them wait for you." in page, 'class="choice' in page
