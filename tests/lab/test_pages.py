"""The lab's pages: contents, game sessions that exist only in the address, and limits. No page touches shop data."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from redis import Redis

from lab.claims import witness
from lab.ladder.catalogue import LADDER, ROOT
from lab.ladder.stock import RUNGS
from lab.models import RungOrder
from lab.sandbox import pool
from lab.sandbox.pool import borrowed
from lab.site.pages import lessons, replays
from lab.site.pages.play_session import MOST_CHOICES
from lab.workloads.registry import can_play
from shop.models import Order
from tests.lab.conftest import STRESS, VERDICT, WITNESSES
from tests.waiting import wait_for

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis", "stored")]

BROKEN, WON = "Broken invariant: one holder.", "You broke it"
WITNESS = WITNESSES["get-compare-del"].schedule
MACHINE = {"cpus": 2, "processor": "x86_64", "python": "3.11.7"}
CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9"}


def text(response: Any) -> str:
    return unescape(response.content.decode())


def play(client: Client, slug: str, schedule: Sequence[str] | str, **query: Any) -> Any:
    listed = schedule if isinstance(schedule, str) else ",".join(schedule)
    return client.get(f"/lab/rungs/{slug}/play/", {"schedule": listed, **query})


def play_to_the_end(client: Client, slug: str, *schedule: str, clients: int) -> tuple[list[str], Any]:
    """Take the first choice until there is none. Return the schedule and the last response."""
    chosen = list(schedule)
    while choices := (response := play(client, slug, chosen, clients=clients)).context["choices"]:
        chosen.append(choices[0][0].name)
    return chosen, response


# The ladder and the rungs


def test_the_ladder_lists_every_rung_with_flaw_and_verdict(client: Client) -> None:
    page = text(client.get("/lab/"))
    assert all(entry.title in page and (entry.flaw or "") in page for entry in LADDER.values())
    assert page.count("broken by a schedule of") == len(WITNESSES)
    assert "broken by a schedule of 8 steps" in page
    assert page.count("held in all 113 schedules of 2 clients with up to 2 preemptions and 1 fault") == 1
    assert page.count("broken in 17 of 500 runs") == 1


@pytest.mark.parametrize("slug", ["redlock-no-fsync", "redlock", "watch-set-too-late", "etcd"])
def test_a_rung_on_its_own_servers_has_a_page(client: Client, monkeypatch: pytest.MonkeyPatch, slug: str) -> None:
    monkeypatch.setattr(witness, "stress", {slug: STRESS}.get)
    assert "broken in 17 of 500 runs" in text(client.get(f"/lab/rungs/{slug}/"))


@pytest.mark.parametrize(
    ("language", "exhausted", "says"),
    [
        ("en", True, "held in all 113 schedules of 2 clients with up to 2 preemptions and 2 faults\n"),
        ("zh-CN", False, "抽样 113 个调度，都守住了\n"),
    ],
)
def test_a_verdict_names_its_bounds(
    client: Client, monkeypatch: pytest.MonkeyPatch, language: str, exhausted: bool, says: str
) -> None:
    monkeypatch.setattr(witness, "verdict", {"renewal": {**VERDICT, "exhausted": exhausted, "faults": 2}}.get)
    for address in ("/lab/", "/lab/rungs/renewal/"):
        assert text(client.get(address, headers={"Accept-Language": language})).count(says) == 1


@pytest.mark.parametrize(
    ("slug", "searched", "explained"),
    [
        ("guarded-update", {"schedules": 19}, True),
        ("guarded-update", {"schedules": 20}, False),
        ("guarded-update", {"schedules": 19, "exhausted": False}, False),
        ("renewal", {"schedules": 19}, False),
        ("compute-and-overwrite", {"schedules": 1}, False),
    ],
)
def test_the_pages_of_a_sale_say_why_few_schedules_were_searched(
    client: Client, monkeypatch: pytest.MonkeyPatch, slug: str, searched: dict[str, Any], explained: bool
) -> None:
    monkeypatch.setattr(witness, "verdict", {slug: {**VERDICT, **searched}}.get)
    for page in ("", "play/"):
        shown = text(client.get(f"/lab/rungs/{slug}/{page}"))
        assert shown.count("saves its order in one statement") == explained
        said = "".join(re.findall(r"Each client saves its order.*", shown))
        assert all((ROOT / file).is_file() for file in re.findall("<code>(tests/.*?)</code>", said))


PARTS = (
    *('class="story"', 'id="run"', 'data-do="first"', "Nothing has happened yet.", 'class="panel"', 'id="source"'),
    *('id="difference"', 'id="lesson"', 'id="figures"', 'class="fold"'),
)
"""Parts of a rung's page in their order. The story comes first. The player shows no step yet."""


@pytest.mark.parametrize("slug", ["no-lock", "renewal", "compute-and-overwrite", "guarded-update"])
def test_a_rung_page_has_source_run_lesson_and_neighbours(client: Client, slug: str) -> None:
    response = client.get(f"/lab/rungs/{slug}/")
    page, rungs = text(response), list(LADDER)
    assert response.status_code == 200
    assert 'class="lanes"' in page
    assert response.context["run"].trace.steps
    assert all(sum("class" in line for line in file.lines) for file in response.context["files"])
    assert str(lessons.lesson(slug)) in response.content.decode()
    assert f'rel="next" href="/lab/rungs/{rungs[rungs.index(slug) + 1]}/"' in page
    places = [page.index(part) for part in PARTS if LADDER[slug].flaw or part != 'id="difference"']
    assert places == sorted(places)
    assert page.count('<p class="now"><code></code>') == 1, "no step is shown before the first"
    assert ('id="difference"' in page) is bool(LADDER[slug].flaw)


def test_a_flawed_rung_shows_its_witness_and_the_line_that_does_each_step(client: Client) -> None:
    response = client.get("/lab/rungs/get-compare-del/")
    run, lane = response.context["run"], response.context["lane"]
    assert (run.kind, run.trace.schedule, run.trace.broken) == ("witness", WITNESS, "one holder")
    together = [(band.kind, band.x) for band in lane.bands if band.kind == "together"]
    assert together == [("together", lane.lanes[1].x), ("together", lane.lanes[2].x)]
    assert [row.entered for row in lane.rows] == [()] * 7 + [("B", "C")]
    for part in ("B + C inside", BROKEN, '<a href="/lab/rungs/watch-release/"><code>'):
        assert part in text(response)
    lines = {file.name: file.lines for file in response.context["files"]}
    sources = [row.source.split(":") for row in lane.rows if row.source]
    assert any("delete" in lines[name][int(number) - 1] for name, number in sources)


def test_a_sound_rung_shows_how_far_the_search_went(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = text(client.get("/lab/rungs/renewal/")).partition('id="searched"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(<td>.*)</tr>", searched)
    assert [re.findall(r"<td>([^<]*)</td>", row) for row in rows] == [
        ["2", "2", "1", "all 113", "held"],
        ["3", "2", "2", "2000", "held"],
    ]
    monkeypatch.setattr(witness, "verdict", {"no-lock": {**VERDICT, "verdict": "broken", "exhausted": False}}.get)
    page = text(client.get("/lab/rungs/no-lock/"))
    assert "How far the search went" not in page
    assert "broken by a schedule" in page


@pytest.mark.parametrize("outdated", [True, False])
@pytest.mark.parametrize(
    ("address", "when", "results"),
    [
        ("/lab/", "2026-01-30 to 2026-01-31", "2 results are"),
        ("/lab/rungs/renewal/", "2026-01-30", "1 result is"),
    ],
)
def test_a_page_says_once_when_and_on_what_it_was_measured(
    client: Client, monkeypatch: pytest.MonkeyPatch, address: str, when: str, results: str, outdated: bool
) -> None:
    days = {"renewal": "2026-01-30", "fence": "2026-01-31"}
    made = {slug: {**VERDICT, "machine": MACHINE, "outdated": outdated, "made": day} for slug, day in days.items()}
    monkeypatch.setattr(witness, "verdict", made.get)
    page = " ".join(text(client.get(address)).split())
    assert re.findall("Measured on .*? Python [0-9.]*[0-9]", page) == [
        f"Measured on {when} with 2 CPUs (x86_64) and Python 3.11.7"
    ]
    found = re.findall(r"\d results? (?:is|are) out of date: the code has changed since\.", page)
    assert found == ([f"{results} out of date: the code has changed since."] if outdated else [])


def test_a_run_that_did_not_break_its_rung_is_not_cached(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = replace(WITNESSES["no-lock"], schedule=("A", "A"))
    monkeypatch.setattr(witness, "load", {"no-lock": harmless}.get)
    assert client.get("/lab/rungs/no-lock/").context["run"].trace.broken != "conserved"
    monkeypatch.setattr(witness, "load", WITNESSES.get)
    first, second = (client.get("/lab/rungs/no-lock/").context["run"] for _ in range(2))
    assert first.trace.broken == "conserved"
    assert second is first


def test_each_kind_of_step_has_its_mark(client: Client) -> None:
    assert {row.mark for row in play(client, "thread-lock", "A,B").context["lane"].rows} == {"own"}
    crashed = play(client, "setnx", "A,crash A,B", clients=2).context["lane"]
    assert [row.mark for row in crashed.rows][:3] == ["call", "crash", "call"]
    assert [lane.name for lane in crashed.lanes] == ["A", "B", "Redis"]


def test_a_fix_is_shown_surviving_the_witness_of_what_it_fixes_and_what_it_changes(client: Client) -> None:
    run = client.get("/lab/rungs/watch-release/").context["run"]
    assert (run.kind, run.other.slug, run.trace.broken) == ("survived", "get-compare-del", None)
    assert run.trace.schedule[: len(WITNESS) - 1] == WITNESS[:-1]
    response = client.get("/lab/rungs/get-compare-del/")
    changes = response.context["difference"]
    assert changes[0] == ("same", " class …(LockRung):")
    removed = "-        return self.client.get(self.key) == owner.encode() and bool(self.client.delete(self.key))"
    assert [line for kind, line in changes if kind == "removed"] == [removed]
    assert [line for kind, line in changes if kind == "added" and "watch(" in line]
    assert not any("Flawed:" in line or "slug =" in line for _, line in changes), "docstrings and claims are left out"
    assert client.get("/lab/rungs/lua-release/").context["difference"] is None


@pytest.mark.parametrize("name", lessons.ESSAYS)
def test_an_essay_exists_in_both_languages(client: Client, name: str) -> None:
    pages = [client.get(f"/lab/essays/{name}/", headers={"Accept-Language": code}) for code in ("en", "zh-CN")]
    assert [page.status_code for page in pages] == [200, 200]
    assert len({page.content.split(b"<article")[1] for page in pages}) == 2


# The visitor as scheduler


def test_only_the_goal_is_judged(client: Client) -> None:
    done, broken = (
        " ".join(re.sub("<[^>]*>", "", text(play(client, "no-lock", schedule, clients=2))).split())
        for schedule in ("A,A,B,B", "A,B,B,A")
    )
    assert "All clients are done" in done
    assert "Not broken: “conserved” holds. But “one holder” does not: A and B are inside" in done
    assert WON in broken
    assert "Broken invariant: conserved. 2 sales were confirmed, but the stock fell from 10 to 9." in broken
    marked = ["data-done" in text(play(client, "no-lock", schedule)) for schedule in ("A,A,B,B", "A,B,B", "A,B,B,A")]
    assert marked == [False, False, True], "progress.js marks such a rung on the ladder"


def test_every_choice_leads_to_an_address_with_one_more_choice(client: Client) -> None:
    assert "No client has taken a step yet. All of them wait for you." in text(play(client, "no-lock", ""))
    page = text(play(client, "no-lock", "A", clients=2))
    assert page.count("<li data-panel=") == 1
    assert "No client has taken a step yet" not in page
    for choice in ("A", "B"):
        assert f'href="/lab/rungs/no-lock/play/?schedule=A,{choice}&clients=2"' in page
    assert 'id="undo" class="button quiet" href="/lab/rungs/no-lock/play/?schedule=&clients=2"' in page


@pytest.mark.parametrize("slug", ["setnx", "renewal", "redis-taken-then-the-process-dies"])
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_no_choice_repeats_its_name(client: Client, slug: str, language: str) -> None:
    address = f"/lab/rungs/{slug}/play/?clients=2&schedule={'A,A' if slug == 'renewal' else 'A'}"
    page = text(client.get(address, headers={"Accept-Language": language}))
    choices = re.findall(r'class="choice.*?<b>(.*?)</b> <code>(.*?)</code>', page)
    assert {"en": "crash A", "zh-CN": "A 崩溃"}[language] in [name for name, _ in choices]
    assert all(name not in does for name, does in choices if len(name) > 1)


def test_a_witness_breaks_its_rung_but_not_the_next(client: Client) -> None:
    response = play(client, "get-compare-del", WITNESS, clients=3)
    page = text(response)
    assert WON in page
    assert "B and C are inside at the same time." in page
    assert response.context["choices"] == ()
    schedule = quote(",".join(WITNESS), safe=",").replace("%20", "+")
    address = f"/lab/rungs/watch-release/play/?schedule={schedule}&clients=3&lenient=1"
    assert f'href="{address}"' in page
    replayed = client.get(address)
    assert replayed.status_code == 200
    assert WON not in text(replayed)


def test_a_sound_rung_explains_why_it_cannot_be_broken(client: Client) -> None:
    page = text(play_to_the_end(client, "renewal", clients=2)[1])
    for part in (
        "Not broken.",
        '<details class="why" open>',
        "The search tried 113 schedules, and none broke it.",
        "Clients: 2; preemptions: at most 2; faults: at most 1.",
        "These are all schedules within these bounds.",
    ):
        assert part in page


@pytest.mark.slow
def test_a_schedule_ends_at_the_longest_address(client: Client) -> None:
    # The dead client keeps the lock forever, so the other clients poll without end.
    schedule, response = play_to_the_end(client, "setnx", "A", "crash A", clients=4)
    assert len(schedule) == MOST_CHOICES
    assert response.context["trace"].choices
    assert f"at most {MOST_CHOICES} choices" in text(response)


NONSENSE = {
    "unknown client": {"schedule": "D", "clients": 3},
    "unknown fault": {"schedule": "earthquake"},
    "gap": {"schedule": "A,,B"},
    "markup": {"schedule": "<script>alert(1)</script>"},
    "too many choices": {"schedule": ",".join(["A"] * (MOST_CHOICES + 1))},
    "too many clients": {"clients": 5},
    "clients not a number": {"clients": "two"},
}


@pytest.mark.parametrize("query", NONSENSE.values(), ids=NONSENSE)
def test_an_invalid_address_is_refused_with_a_page(client: Client, query: dict[str, Any]) -> None:
    response = client.get("/lab/rungs/no-lock/play/", query)
    assert response.status_code == 400
    assert "Start with an empty schedule" in text(response)
    assert "<script>alert" not in response.content.decode()


def test_a_lenient_session_leaves_out_choices_of_other_rungs(client: Client) -> None:
    response = play(client, "no-lock", "A,late release,B", clients=2, lenient=1)
    assert response.context["trace"].schedule == ("A", "B")
    assert "1 choice is not possible on this rung" in text(response)


# Limits


def assert_refused_for_now(response: Any) -> None:
    assert (response.status_code, response["Retry-After"]) == (503, str(replays.RETRY_SECONDS))


def test_without_a_free_sandbox_or_redis_a_visitor_is_told_when_to_retry(
    client: Client, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, settings.REDIS_LOCATION = settings.REDIS_LOCATION, f"unix://{tmp_path}/none"
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_idle", {})
        response = play(client, "no-lock", "A")
    assert_refused_for_now(response)
    settings.REDIS_LOCATION = running
    assert "The lab's servers do not answer" in text(response)
    settings.LAB_SANDBOXES = 1
    with borrowed(), monkeypatch.context() as patch:
        patch.setattr(replays, "borrowed", partial(borrowed, 0.1))
        assert_refused_for_now(play(client, "no-lock", "A"))
    with ExitStack() as others:
        for _ in range(replays.VISITORS):
            others.enter_context(replays._visitor_slot())
        assert play(client, "no-lock", "A").status_code == 503, "waiting visitors leave threads to the shop"
    assert play(client, "no-lock", "A").status_code == 200


def test_a_schedule_that_takes_too_long_is_stopped_and_leaves_nothing(
    client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LAB_SANDBOXES = 1
    with borrowed() as sandbox:
        pass
    threads = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(replays, "REPLAY_SECONDS", 0.0)
        response = play(client, "row-lock", "A,A,B")
    assert_refused_for_now(response)
    assert "This schedule took too long" in text(response)
    wait_for(lambda: set(threading.enumerate()) <= threads, "the threads of the clients to end")
    assert pool._idle == {}
    assert sandbox.redis.dbsize() == 0
    assert play(client, "row-lock", "A,A,B").status_code == 200


def test_a_run_touches_neither_the_shop_nor_the_labs_tables(client: Client, redis: Redis) -> None:
    for slug in (*list(RUNGS)[:2], "guarded-update", "lua"):
        assert client.get(f"/lab/rungs/{slug}/").context["run"].trace.ledger["sold"]
        assert play(client, slug, "A,B").status_code == 200
    assert not Order.objects.exists()
    assert not RungOrder.objects.exists()
    assert redis.keys() == []


PAGES = [
    "/lab/",
    "/lab/first/",
    "/lab/first/no-lock/",
    "/lab/rungs/no-lock/",
    "/lab/rungs/no-lock/play/",
    "/lab/rungs/no-lock/play/?schedule=D",
]


@pytest.mark.parametrize("address", PAGES)
def test_a_page_is_public_read_only_and_loads_only_the_labs_files(client: Client, address: str) -> None:
    response = client.get(address)
    assert response.status_code == (400 if "D" in address else 200)
    assert client.cookies == {}
    assert "default-src 'none'" in response["Content-Security-Policy"]
    assert "unsafe" not in response["Content-Security-Policy"]
    assert "://" not in response.content.decode().replace("http://testserver", "")
    assert client.post(address).status_code == 405


@pytest.mark.parametrize(
    "address", ["/lab/rungs/no-such-rung/", "/lab/rungs/no-such-rung/play/", "/lab/essays/no-such-essay/"]
)
def test_an_unknown_page_leads_back_to_the_ladder(client: Client, address: str) -> None:
    response = client.get(address)
    assert response.status_code == 404
    assert 'href="/lab/"' in text(response)


@pytest.mark.usefixtures("lab_disabled")
def test_without_the_lab_there_is_no_page(client: Client) -> None:
    assert [client.get(address).status_code for address in ("/lab", *PAGES[:3])] == [404] * 4


# Languages


def test_a_page_is_in_the_readers_language(client: Client) -> None:
    response = client.get("/lab/rungs/get-compare-del/", headers=CHINESE)
    assert response["Content-Language"] == "zh-hans"
    page = text(response)
    assert '<html lang="zh-hans">' in page
    assert "B 和 C 同时在里面。" in page
    assert LADDER["get-compare-del"].flaw not in page.split('class="code"')[0]
    rows = client.get("/lab/rungs/thread-lock/play/?schedule=A,B", headers=CHINESE).context["lane"].rows
    assert rows
    assert [row.does for row in rows if re.search("[a-z]{3}", row.does)] == [], "steps outside a server"
    for address in ("/lab/rungs/fence/", "/lab/rungs/no-lock/", "/lab/rungs/no-lock/play/?schedule=A"):
        page = text(client.get(address, headers=CHINESE)).split('class="prose"')[0]
        shown = re.sub(r"<(style|script|pre|code|svg).*?</\1>", "", page, flags=re.DOTALL)
        narrow = r"[\u4e00-\u9fff]</?\w*>?\s*:|:\s*[\u4e00-\u9fff]"
        assert re.findall(narrow, re.sub(r'"[^"]*"', '""', shown)) == [], "colons have full width"


def test_the_chosen_language_is_kept_and_leads_back_to_the_page(client: Client) -> None:
    here = "/lab/rungs/no-lock/play/?schedule=A,B&clients=2"
    link = re.search(r'href="(/language/zh-hans/[^"]+)"', text(client.get(here)))
    assert link
    response = client.get(link[1])
    assert (response.status_code, response["Location"]) == (302, here)
    assert client.get("/lab/")["Content-Language"] == "zh-hans"


def test_the_api_ignores_the_language(client: Client) -> None:
    client.get("/language/zh-hans/")
    for address in ("/api/orders/", "/lab/rungs/", "/api/problems/not-found/"):
        plain, asked = Client().get(address), client.get(address, headers=CHINESE)
        assert plain.content == asked.content
        assert "Content-Language" not in asked
        assert "Accept-Language" not in asked.get("Vary", "")


def test_a_stored_trace_names_the_files_of_today() -> None:
    for entry in LADDER.values():
        if not can_play(entry):
            trace = witness.trace(entry.slug)
            assert trace is not None, entry.slug
            files = {step.file for step in trace.steps if step.file}
            assert [file for file in files if not (ROOT / file).is_file()] == [], entry.slug
