"""The game on every rung that is played: wherever a page leads, there is a page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from django.test import Client

from lab.claims import witness
from lab.ladder.catalogue import LADDER
from lab.site.pages import runs
from lab.site.pages.session import CLIENTS, PlaySession
from lab.workloads.registry import can_play

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.usefixtures("stages")]


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_kept", {})


def links(reader: Client, address: str, page: str) -> list[str]:
    """The addresses of the game to which the page at an address leads; `page` is the one that has led there."""
    answer = reader.get(address)
    text = answer.content.decode()
    why = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    assert answer.status_code == 200, f"{address}, to which {page} leads, answers {answer.status_code}: {why}"
    found = re.findall(r'href="(/lab/rungs/[^"/]+/play/[^"]*)"', text)
    return [unescape(link) for link in dict.fromkeys(found)]


@pytest.mark.parametrize("slug", [slug for slug, entry in LADDER.items() if can_play(entry)])
def test_every_link_of_the_game_leads_to_a_page(slug: str) -> None:
    reader, rung, start = Client(), f"/lab/rungs/{slug}/", PlaySession(slug, (), LADDER[slug].clients)
    others = {replace(start, clients=clients).address for clients in CLIENTS}  # the same links on every rung
    # The page of the rung leads to the start of the game, and into the middle of it.
    pages = {rung: links(reader, rung, "/lab/"), start.address: links(reader, start.address, rung)}
    if (stored := witness.load(slug)) is not None:
        last = PlaySession(slug, stored.schedule[:-1], stored.clients).address
        pages[last] = links(reader, last, rung)
    seen = {address: page for page, found in pages.items() for address in found}
    assert {start.address} < {*seen}
    for address in seen.keys() - others - pages.keys():
        links(reader, address, seen[address])


def test_there_may_be_more_clients_or_fewer() -> None:
    reader, start = Client(), PlaySession("no-lock", (), 2)
    assert {replace(start, clients=clients).address for clients in (3, 4)} < {*links(reader, start.address, "/lab/")}
    for clients in CLIENTS:
        assert len(reader.get(replace(start, clients=clients).address).context["choices"]) == clients


def test_a_game_with_a_worker_goes_on_to_its_end() -> None:
    reader, schedule = Client(), ["A", "W", "crash W"]
    while choices := reader.get(PlaySession("lua-queue", tuple(schedule), 2).address).context["choices"]:
        schedule.append(choices[0][0].name)
    page = reader.get(PlaySession("lua-queue", tuple(schedule), 2).address).content.decode()
    assert "Not broken." in page
    assert reader.get("/lab/rungs/lua/play/?schedule=W").status_code == 400
