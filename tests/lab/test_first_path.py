"""The path "Your first ten minutes": a goal is reached by its last choice. In the game, each link leads to a page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client

from lab.claims import witness
from lab.ladder.catalogue import LADDER
from lab.site.pages.first_path import STATIONS, Station
from lab.site.pages.play_session import CLIENT_COUNTS, MOST_CHOICES, PlaySession
from lab.workloads.registry import can_play

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sandboxes")]

BY_SLUG = {station.slug: station for station in STATIONS}


def visit(slug: str, *schedule: str) -> Any:
    return Client().get(f"/lab/first/{slug}/", {"schedule": ",".join(schedule)})


@pytest.mark.parametrize("station", STATIONS, ids=BY_SLUG)
def test_each_goal_is_reached_by_its_choice_and_not_before(station: Station) -> None:
    ends = [goal.choices for goal in station.goals]
    assert ends[-1] == len(station.schedule)
    for choices in range(len(station.schedule) + 1):
        response = visit(station.slug, *station.schedule[:choices])
        reached = sum(end <= choices for end in ends)
        assert len(response.context["reached"]) == reached, station.schedule[:choices]
        offered = response.context["choices"]
        if reached < len(ends):
            assert station.schedule[choices] in [choice.name for choice, _plain, _then in offered]
            assert [choice.does for choice, text, _then in offered if not choice.is_fault and not text] == []
        else:
            assert offered == []


@pytest.mark.parametrize("station", STATIONS, ids=BY_SLUG)
def test_a_station_begins_with_its_story_and_one_goal(station: Station) -> None:
    page = unescape(visit(station.slug).content.decode())
    places = [page.index(sentence) for sentence in station.story]
    assert places == sorted(places)
    assert places[-1] < page.index(station.goals[0].text) < page.index('class="code"')
    assert not any(goal.text in page for goal in station.goals[1:])
    assert "Next station" not in page
    assert "No client has taken a step yet. All of them wait for you." in page


def test_the_flawed_stations_are_broken_and_each_station_leads_to_the_next() -> None:
    ends = {slug: visit(slug, *station.schedule) for slug, station in BY_SLUG.items()}
    broken = [slug for slug, response in ends.items() if response.context["trace"].reached]
    assert broken == ["no-lock", "set-nx-ex", "lua-release"]
    assert "overtaken" in ends["fence"].context["trace"].steps[-1].answers.values()
    assert LADDER["fence"].claim == "sound"
    for station, following in pairwise(STATIONS):
        page = ends[station.slug].content.decode()
        assert f'href="/lab/first/{following.slug}/?' in page
        assert "data-done" in page
        assert "data-done" not in visit(station.slug).content.decode()
    assert 'id="next" class="button" href="/lab/"' in ends["fence"].content.decode()


MISSED = {
    "one after the other": ("no-lock", ["A", "A", "B", "B"], 0),
    "a crash after the release": ("setnx", ["A", "A", "A", "A", "crash B"], 0),
    "released in time": ("set-nx-ex", ["A", "A", "A", "A", "B", "B", "B", "B", "C", "C", "C", "C"], 0),
    "no other client came in": ("set-nx-ex", ["A", "A", "A", "late release", "A"], 1),
    "in time": ("lua-release", ["A", "A", "A", "A", "B", "B", "B", "B"], 0),
}


@pytest.mark.parametrize(("slug", "schedule", "reached"), MISSED.values(), ids=MISSED)
def test_a_harmless_schedule_reaches_no_goal(slug: str, schedule: list[str], reached: int) -> None:
    response = visit(slug, *schedule)
    assert len(response.context["reached"]) == reached
    page = response.content.decode()
    assert 'id="undo"' in page
    assert ("this goal is not reached" in page) == response.context["trace"].ended


def test_a_station_offers_only_the_faults_of_its_goals() -> None:
    offered = visit("fence", "A", "A").context["choices"]
    assert [choice.name for choice, _plain, _then in offered if choice.is_fault] == ["pause A"]
    assert Client().get("/lab/rungs/fence/play/?schedule=A,A").context["choices"][-1][0].name == "clock jump"


def test_the_first_page_of_the_path_lists_its_stations_and_a_hint_can_be_followed(client: Client) -> None:
    shown = visit("no-lock", "A", "A").context["shown"]
    assert len(client.get(shown.address).context["reached"]) == 1
    page = client.get("/lab/first/").content.decode()
    places = [page.index(f'href="/lab/first/{slug}/"', page.index("<ol")) for slug in BY_SLUG]
    assert places == sorted(places)


def test_an_impossible_choice_leads_back_into_the_path_and_a_rung_off_it_is_not_found() -> None:
    assert [visit(slug).status_code for slug in ("renewal", "no-such-rung")] == [404, 404]
    response = visit("no-lock", "A", "A", "A")
    assert response.status_code == 400
    assert 'href="/lab/first/no-lock/?schedule=A,A&amp;clients=2"' in response.content.decode()


def links(reader: Client, address: str, page: str) -> list[str]:
    """Return the game's links on the page at `address`. Errors name `page`, which links to it."""
    response = reader.get(address)
    text = response.content.decode()
    words = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    assert response.status_code == 200, f"{address}, linked from {page}, answers {response.status_code}: {words}"
    found = re.findall(r'href="(/lab/rungs/[^"/]+/play/[^"]*)"', text)
    return [unescape(link) for link in dict.fromkeys(found)]


@pytest.mark.slow
@pytest.mark.parametrize("slug", [slug for slug, entry in LADDER.items() if can_play(entry)])
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


@pytest.mark.slow
def test_the_number_of_clients_can_be_changed_and_a_worker_plays() -> None:
    reader, start = Client(), PlaySession("no-lock", (), 2)
    assert {replace(start, clients=clients).address for clients in (3, 4)} < {*links(reader, start.address, "/lab/")}
    for clients in CLIENT_COUNTS:
        assert len(reader.get(replace(start, clients=clients).address).context["choices"]) == clients
    # A game with a worker can be played to its end.
    schedule = ["A", "W", "crash W"]
    while choices := reader.get(PlaySession("lua-queue", tuple(schedule), 2).address).context["choices"]:
        schedule.append(choices[0][0].name)
    page = reader.get(PlaySession("lua-queue", tuple(schedule), 2).address).content.decode()
    assert "Not broken." in page
    assert reader.get("/lab/rungs/lua/play/?schedule=W").status_code == 400
