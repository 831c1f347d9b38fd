"""The lab's pages: what each shows, that a session is its address, and that nothing is touched, kept or unbounded."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation
from redis import Redis

from lab.claims import witness
from lab.ladder.catalogue import LADDER
from lab.ladder.stock import RUNGS
from lab.models import RungOrder
from lab.sandbox import pool
from lab.sandbox.pool import borrowed
from lab.site.pages import lessons, runs
from lab.site.pages.session import LONGEST
from shop.models import Order
from tests.lab.conftest import CONTROL, VERDICT, WITNESSES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis", "stored")]

BROKEN, WON = "Broken: one holder.", "You have broken it"
WITNESS = WITNESSES["get-compare-del"].schedule


@pytest.fixture
def reader() -> Client:
    return Client()


def text(answer: Any) -> str:
    return unescape(answer.content.decode())


def play(reader: Client, slug: str, schedule: Sequence[str] | str, **query: Any) -> Any:
    said = schedule if isinstance(schedule, str) else ",".join(schedule)
    return reader.get(f"/lab/rungs/{slug}/play/", {"schedule": said, **query})


# What is shown


def test_the_ladder_has_every_rung_with_its_flaw_and_its_verdict(reader: Client) -> None:
    page = text(reader.get("/lab/"))
    places = [page.index(f'href="/lab/rungs/{slug}/"') for slug in LADDER]
    assert places == sorted(places)
    assert all(entry.title in page and (entry.flaw or "") in page for entry in LADDER.values())
    assert page.count("broken by a schedule of") == len(WITNESSES)
    assert "broken by a schedule of 8 steps" in page
    assert page.count("held in all 113 schedules of 2 clients with up to 2 preemptions and 1 event") == 1
    assert page.count("broken in 17 of 500 tries") == 1


@pytest.mark.parametrize("slug", ["redlock-no-fsync", "redlock", "watch-set-too-late", "etcd"])
def test_the_page_of_a_rung_on_servers_of_its_own_says_what_came_of_chance(
    reader: Client, monkeypatch: pytest.MonkeyPatch, slug: str
) -> None:
    monkeypatch.setattr(witness, "control", {slug: CONTROL}.get)
    assert "broken in 17 of 500 tries" in text(reader.get(f"/lab/rungs/{slug}/"))


@pytest.mark.parametrize("slug", ["fence", "guarded-update", "no-lock"])
def test_a_rung_leads_to_its_row_in_the_measured_comparison(reader: Client, slug: str) -> None:
    rows = re.findall(r'href="/lab/comparison/#([^"]+)"', text(reader.get(f"/lab/rungs/{slug}/")))
    assert rows == {"fence": ["locks-redis"], "guarded-update": ["strategies-guarded-update"], "no-lock": []}[slug]
    measured = text(reader.get("/lab/comparison/"))
    assert all(f'<tr id="{row}"' in measured for row in rows)


SEARCHED = {
    ("en", True, 1): "held in all 113 schedules of 2 clients with up to 2 preemptions and 1 event\n",
    ("en", True, 2): "held in all 113 schedules of 2 clients with up to 2 preemptions and 2 events\n",
    ("en", False, 1): "held in a sample of 113 schedules\n",
    ("zh-CN", True, 1): "2 个客户端、最多 2 次抢占和 1 个事件的全部 113 个调度，都守住了\n",
    ("zh-CN", False, 1): "抽样 113 个调度，都守住了\n",
}


@pytest.mark.parametrize(("language", "exhausted", "events"), SEARCHED)
def test_a_verdict_says_within_which_bounds_it_holds(
    reader: Client, monkeypatch: pytest.MonkeyPatch, language: str, exhausted: bool, events: int
) -> None:
    searched = {**VERDICT, "exhausted": exhausted, "events": events}
    monkeypatch.setattr(witness, "verdict", lambda slug: searched if slug == "renewal" else None)
    said = SEARCHED[language, exhausted, events]
    for address in ("/lab/", "/lab/rungs/renewal/"):
        assert text(reader.get(address, headers={"Accept-Language": language})).count(said) == 1


@pytest.mark.parametrize("slug", ["no-lock", "renewal", "compute-and-overwrite", "guarded-update"])
def test_a_rung_has_its_source_its_run_its_lesson_and_its_neighbours(reader: Client, slug: str) -> None:
    answer = reader.get(f"/lab/rungs/{slug}/")
    page, rungs = text(answer), list(LADDER)
    assert answer.status_code == 200
    assert 'class="lanes"' in page
    assert answer.context["run"].trace.steps
    assert all(sum("class" in line for line in file.lines) for file in answer.context["files"])
    assert str(lessons.lesson(slug)) in answer.content.decode()
    assert f'rel="next" href="/lab/rungs/{rungs[rungs.index(slug) + 1]}/"' in page


def test_a_flawed_rung_shows_the_schedule_that_breaks_it_and_who_is_inside(reader: Client) -> None:
    answer = reader.get("/lab/rungs/get-compare-del/")
    run, lane = answer.context["run"], answer.context["lane"]
    assert (run.kind, run.trace.schedule, run.trace.broken) == ("witness", WITNESS, "one holder")
    assert [(band.kind, band.x) for band in lane.bands if band.kind == "together"] == [
        ("together", lane.lanes[1].x),
        ("together", lane.lanes[2].x),
    ]
    assert [row.entered for row in lane.rows] == [()] * 7 + [("B", "C")]
    assert "B + C inside" in text(answer)
    assert BROKEN in text(answer)


def test_a_sound_rung_shows_how_far_it_was_searched(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    page = text(reader.get("/lab/rungs/renewal/"))
    searched = page.partition('id="searched"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(<td>.*)</tr>", searched)
    assert [re.findall(r"<td>([^<]*)</td>", row) for row in rows] == [
        ["2", "2", "1", "all 113", "held"],
        ["3", "2", "2", "2000", "held"],
    ]
    assert "Out of date" not in page
    assert "How far it was searched" not in text(reader.get("/lab/rungs/no-lock/"))
    monkeypatch.setattr(witness, "verdict", lambda slug: {**VERDICT, "outdated": True})
    assert "Out of date: the code has changed since." in text(reader.get("/lab/rungs/renewal/"))


def test_the_line_that_does_a_step_is_one_of_the_source_shown(reader: Client) -> None:
    answer = reader.get("/lab/rungs/get-compare-del/")
    lines = {file.name: file.lines for file in answer.context["files"]}
    sources = [row.source.split(":") for row in answer.context["lane"].rows if row.source]
    assert any("delete" in lines[name][int(number) - 1] for name, number in sources)


def test_a_witness_that_does_not_break_its_rung_is_not_shown_for_good(
    reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = replace(WITNESSES["no-lock"], schedule=("A", "A"))
    monkeypatch.setattr(witness, "load", {"no-lock": harmless}.get)
    assert reader.get("/lab/rungs/no-lock/").context["run"].trace.broken != "conserved"
    monkeypatch.setattr(witness, "load", WITNESSES.get)
    shown = [reader.get("/lab/rungs/no-lock/").context["run"] for _ in range(2)]
    assert shown[0].trace.broken == "conserved"
    assert shown[1] is shown[0]


def test_a_redis_that_forgot_its_scripts_changes_no_run(reader: Client, redis: Redis) -> None:
    before = play(reader, "lua", "A,A,A").context["trace"]
    redis.script_flush()
    after = play(reader, "lua", "A,A,A").context["trace"]
    assert [step.does for step in after.steps] == [step.does for step in before.steps]
    assert after.choices == before.choices


def test_a_crash_is_drawn_as_one_and_a_step_inside_a_process_as_another(reader: Client) -> None:
    rows = play(reader, "thread-lock", "A,B").context["lane"].rows
    assert {row.mark for row in rows} == {"own"}
    crashed = play(reader, "setnx", "A,crash A,B", clients=2).context["lane"]
    assert [row.mark for row in crashed.rows][:3] == ["call", "crash", "call"]
    assert [lane.name for lane in crashed.lanes] == ["A", "B", "Redis"]


def test_a_rung_that_fixes_another_is_shown_surviving_its_schedule(reader: Client) -> None:
    run = reader.get("/lab/rungs/watch-release/").context["run"]
    assert (run.kind, run.other.slug, run.trace.broken) == ("survived", "get-compare-del", None)
    assert run.trace.schedule[: len(WITNESS) - 1] == WITNESS[:-1]


def test_the_difference_to_the_next_rung_is_what_its_file_changes(reader: Client) -> None:
    changes = reader.get("/lab/rungs/get-compare-del/").context["difference"]
    assert ("removed", '-    slug = "get-compare-del"') in changes
    assert ("added", '+    slug = "watch-release"') in changes
    assert reader.get("/lab/rungs/lua-release/").context["difference"] is None


@pytest.mark.parametrize("name", lessons.ESSAYS)
def test_an_essay_is_there_in_both_languages(reader: Client, name: str) -> None:
    pages = [reader.get(f"/lab/essays/{name}/", headers={"Accept-Language": code}) for code in ("en", "zh-CN")]
    assert [page.status_code for page in pages] == [200, 200]
    assert len({page.content.split(b"<article")[1] for page in pages}) == 2


@pytest.mark.parametrize("slug", LADDER)
def test_a_rung_has_a_lesson_of_the_same_parts_in_both_languages(slug: str) -> None:
    found = []
    for code in ("en", "zh-hans"):
        with translation.override(code):
            found.append(str(lessons.lesson(slug)))
    assert [prose.count("<h3>") for prose in found] == [5, 5]
    assert found[0].count("<p>") == found[1].count("<p>")
    assert found[0] != found[1]


def test_the_names_of_rungs_in_the_prose_are_links_and_nothing_in_it_is_markup(reader: Client) -> None:
    assert f'<a href="{reverse("lab-rung", args=["watch-release"])}"><code>' in str(lessons.lesson("get-compare-del"))
    assert "<script" not in str(lessons.lesson("get-compare-del"))


# You are the scheduler


def test_every_choice_leads_to_an_address_that_is_one_choice_longer(reader: Client) -> None:
    page = text(play(reader, "no-lock", "A", clients=2))
    for choice in ("A", "B"):
        assert f'href="/lab/rungs/no-lock/play/?schedule=A,{choice}&clients=2"' in page
    assert 'id="undo" class="button quiet" href="/lab/rungs/no-lock/play/?schedule=&clients=2"' in page


@pytest.mark.parametrize("slug", ["setnx", "renewal", "redis-taken-then-the-process-dies"])
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_no_choice_says_its_name_twice(reader: Client, slug: str, language: str) -> None:
    schedule = "A,A" if slug == "renewal" else "A"
    address = f"/lab/rungs/{slug}/play/?clients=2&schedule={schedule}"
    page = text(reader.get(address, headers={"Accept-Language": language}))
    choices = re.findall(r'class="choice.*?<b>(.*?)</b> <code>(.*?)</code>', page)
    assert {"en": "crash A", "zh-CN": "A 崩溃"}[language] in [name for name, _ in choices]
    assert all(name not in does for name, does in choices if len(name) > 1)


def test_whoever_lets_two_in_has_won_and_is_told_why(reader: Client) -> None:
    answer = play(reader, "get-compare-del", WITNESS, clients=3)
    page = text(answer)
    assert WON in page
    assert "B and C are inside at the same time." in page
    assert answer.context["choices"] == ()


def test_the_same_schedule_does_not_break_the_next_rung(reader: Client) -> None:
    page = text(play(reader, "get-compare-del", WITNESS, clients=3))
    address = f"/lab/rungs/watch-release/play/?schedule={quote(','.join(WITNESS), safe=',').replace('%20', '+')}"
    assert f'href="{address}&clients=3&lenient=1"' in page
    answer = reader.get(f"{address}&clients=3&lenient=1")
    assert answer.status_code == 200
    assert WON not in text(answer)


def test_a_sound_rung_that_has_ended_says_why_it_cannot_be_broken(reader: Client) -> None:
    schedule: list[str] = []
    while choices := play(reader, "renewal", schedule, clients=2).context["choices"]:
        schedule.append(choices[0][0].name)
    page = text(play(reader, "renewal", schedule, clients=2))
    assert "Not broken." in page
    assert '<details class="why" open>' in page
    assert "The search tried 113 schedules and none broke it." in page
    assert "Clients: 2; preemptions: 2 at most; events: 1 at most." in page
    assert "Within these bounds there are no others." in page


def test_a_schedule_ends_with_the_longest_address(reader: Client) -> None:
    # The lock is a dead man's: the others ask again and again, and nobody is let in.
    schedule = ["A", "crash A"]
    while choices := (answer := play(reader, "setnx", schedule, clients=4)).context["choices"]:
        schedule.append(choices[0][0].name)
    assert len(schedule) == LONGEST
    assert answer.context["trace"].choices
    assert f"at most {LONGEST} choices" in text(answer)


NONSENSE = {
    "nobody of that name": {"schedule": "D", "clients": 3},
    "nobody of that name among so many": {"schedule": "C", "clients": 2},
    "the crash of nobody": {"schedule": "crash C", "clients": 2},
    "no event": {"schedule": "earthquake"},
    "a gap": {"schedule": "A,,B"},
    "markup": {"schedule": "<script>alert(1)</script>"},
    "too many choices": {"schedule": ",".join(["A"] * (LONGEST + 1))},
    "too many clients": {"clients": 5},
    "too few clients": {"clients": 1},
    "clients that are no number": {"clients": "two"},
}


@pytest.mark.parametrize("query", NONSENSE.values(), ids=NONSENSE)
def test_an_address_that_is_no_session_is_refused_with_a_page(reader: Client, query: dict[str, Any]) -> None:
    answer = reader.get("/lab/rungs/no-lock/play/", query)
    assert answer.status_code == 400
    assert "Begin with an empty schedule" in text(answer)
    assert "<script>alert" not in answer.content.decode()


def test_what_cannot_be_chosen_is_refused_with_a_link_to_the_choices_before_it(reader: Client) -> None:
    answer = play(reader, "setnx", "A,crash A,A,B", clients=2)
    assert answer.status_code == 400
    assert 'href="/lab/rungs/setnx/play/?schedule=A,crash+A&clients=2"' in text(answer)
    assert play(reader, "setnx", "A,crash A", clients=2).status_code == 200


def test_what_another_rung_does_not_offer_is_left_out_if_that_is_asked_for(reader: Client) -> None:
    answer = play(reader, "no-lock", "A,late release,B", clients=2, lenient=1)
    assert answer.context["trace"].schedule == ("A", "B")
    assert "1 choice could not be made on this rung" in text(answer)


# Bounds


def test_when_all_stages_are_in_use_a_visitor_is_told_when_to_come_again(reader: Client, settings: Any) -> None:
    settings.LAB_SANDBOXES = 1
    with borrowed():
        answer = play(reader, "no-lock", "A")
    assert (answer.status_code, answer["Retry-After"]) == (503, str(runs.AGAIN))
    assert play(reader, "no-lock", "A").status_code == 200


def test_a_schedule_that_takes_too_long_is_given_up_and_leaves_nothing_behind(
    reader: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LAB_SANDBOXES = 1
    with borrowed() as stage:
        pass
    threads = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(runs, "LONG", 0.0)
        answer = play(reader, "row-lock", "A,A,B")
    assert (answer.status_code, answer["Retry-After"]) == (503, str(runs.AGAIN))
    assert "This schedule took too long" in text(answer)
    assert set(threading.enumerate()) <= threads
    assert pool._idle == {}
    assert stage.redis.dbsize() == 0
    assert play(reader, "row-lock", "A,A,B").status_code == 200


def test_visitors_who_wait_leave_threads_to_the_shop(reader: Client) -> None:
    with ExitStack() as others:
        for _ in range(runs.VISITORS):
            others.enter_context(runs._place())
        assert play(reader, "no-lock", "A").status_code == 503, "though every stage is free"
    assert play(reader, "no-lock", "A").status_code == 200


def test_a_run_touches_nothing_of_the_shop_and_nothing_of_the_labs_api(reader: Client, redis: Redis) -> None:
    for slug in (*list(RUNGS)[:2], "guarded-update", "lua"):
        assert reader.get(f"/lab/rungs/{slug}/").context["run"].trace.ledger["sold"]
        assert play(reader, slug, "A,B").status_code == 200
    assert not Order.objects.exists()
    assert not RungOrder.objects.exists()
    assert redis.keys() == []


def test_the_pages_need_nobody_to_log_in_and_keep_nothing_of_who_came(reader: Client) -> None:
    for address in ("/lab/", "/lab/rungs/no-lock/", "/lab/rungs/no-lock/play/"):
        assert reader.get(address).status_code == 200
    assert set(reader.cookies) <= {"csrftoken"}


@pytest.mark.parametrize("address", ["/lab/", "/lab/rungs/no-lock/", "/lab/rungs/no-lock/play/?schedule=D"])
def test_every_page_loads_from_the_lab_alone(reader: Client, address: str) -> None:
    answer = reader.get(address)
    assert "default-src 'none'" in answer["Content-Security-Policy"]
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert "://" not in answer.content.decode().replace("http://testserver", "")


@pytest.mark.parametrize(
    "address", ["/lab/rungs/no-such-rung/", "/lab/rungs/no-such-rung/play/", "/lab/essays/no-such-essay/"]
)
def test_what_is_not_there_is_a_page_that_leads_back(reader: Client, address: str) -> None:
    answer = reader.get(address)
    assert answer.status_code == 404
    assert 'href="/lab/"' in text(answer)


@pytest.mark.parametrize("address", ["/lab/", "/lab/rungs/no-lock/", "/lab/rungs/no-lock/play/"])
def test_the_pages_are_read_only(reader: Client, address: str) -> None:
    assert reader.post(address).status_code == 405


@pytest.mark.usefixtures("lab_disabled")
@pytest.mark.parametrize(
    "address", ["/lab", "/lab/", "/lab/rungs/no-lock/", "/lab/rungs/no-lock/play/", "/lab/language/"]
)
def test_without_the_lab_there_is_no_page(reader: Client, address: str) -> None:
    assert reader.get(address).status_code == 404


# Languages


def test_a_page_is_in_the_readers_language(reader: Client) -> None:
    answer = reader.get("/lab/rungs/get-compare-del/", headers={"Accept-Language": "zh-CN,zh;q=0.9"})
    assert answer["Content-Language"] == "zh-hans"
    page = text(answer)
    assert '<html lang="zh-hans">' in page
    assert "B 和 C 同时在里面。" in page
    assert LADDER["get-compare-del"].flaw not in page.split('class="code"')[0]


def test_what_is_done_in_no_server_is_told_in_the_readers_language(reader: Client) -> None:
    answer = reader.get("/lab/rungs/thread-lock/play/?schedule=A,B", headers={"Accept-Language": "zh-CN"})
    assert [row.does for row in answer.context["lane"].rows if re.search("[a-z]{3}", row.does)] == []
    assert answer.context["lane"].rows


def test_the_language_that_was_chosen_is_kept_and_leads_back_to_the_page(reader: Client) -> None:
    here = "http://testserver/lab/rungs/no-lock/play/?schedule=A,B&clients=2"
    answer = reader.post("/lab/language/", {"language": "zh-hans"}, headers={"Referer": here})
    assert (answer.status_code, answer["Location"]) == (302, here)
    assert reader.get("/lab/")["Content-Language"] == "zh-hans"


def test_the_api_answers_the_same_whatever_the_language(reader: Client) -> None:
    reader.post("/lab/language/", {"language": "zh-hans"})
    chinese = {"Accept-Language": "zh-CN"}
    for address in ("/api/orders/", "/lab/rungs/", "/api/problems/not-found/"):
        plain, asked = Client().get(address), reader.get(address, headers=chinese)
        assert plain.content == asked.content
        assert "Content-Language" not in asked
        assert "Accept-Language" not in asked.get("Vary", "")


# Servers that are gone


def test_without_redis_a_page_says_so(
    reader: Client, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_LOCATION = f"unix://{tmp_path}/none"
    monkeypatch.setattr(pool, "_idle", {})
    answer = play(reader, "no-lock", "A")
    assert (answer.status_code, answer["Retry-After"]) == (503, str(runs.AGAIN))
