"""The measured comparison: what is stored is shown, sorted, and told as out of date once the code has changed."""

from __future__ import annotations

import copy
import html
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from lab.ladder.catalogue import LADDER
from lab.management.commands import compare
from lab.site.comparison import stored
from lab.site.comparison.choice import ARGUMENTS
from lab.site.comparison.pages import links
from lab.site.comparison.stored import PARTS, Part, Row
from servers import zookeeper
from tests.lab.comparison_support import STORED

PAGE = "/lab/comparison/"
MISSING = "This has not been measured yet."
STALE = "Out of date: the code has changed since."
SHORT = "This was a short run"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the comparison is stored. There is none yet."""
    there = tmp_path / "comparison.json"
    monkeypatch.setattr(stored, "FILE", there)
    return there


def page(query: str = "") -> str:
    answer = Client().get(PAGE + query)
    assert answer.status_code == 200
    return answer.content.decode()


def rows(part: Part, query: str = "") -> list[list[str]]:
    section = re.findall(rf'<section id="{part}">.*?</section>', page(query), re.DOTALL)[0]
    lines = re.findall(r"<tr.*?</tr>", section, re.DOTALL)[1:]
    return [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)] for line in lines]


def test_what_was_never_measured_says_how_it_is(file: Path) -> None:
    said = page()
    assert said.count(MISSING) == 2
    for part in PARTS:
        assert f"manage.py compare {part}" in said
    file.write_text(json.dumps({"locks": STORED["locks"]}))
    assert page().count(MISSING) == 1


def test_every_figure_is_shown_and_the_fastest_comes_first(file: Path) -> None:
    file.write_text(json.dumps(STORED))
    assert rows("strategies") == [
        ["guarded-update", "1,250", "0.8", "2.4", "0.75", "0.02"],
        ["redis-lock", "250", "4.0", "12.0", "0.75", "3.01"],
        ["redis-py-lock not ours", "100", "10.0", "30.0", "0.75", "–"],
    ]
    assert rows("locks") == [
        ["thread", "50,000", "0.1", "0.2", "1.00", "–"],
        ["redis renewal woken", "4,000", "0.6", "1.2", "0.94", "9.90"],
        ["redis-py not ours", "2,000", "51.0", "102.0", "0.00", "10.00"],
    ]
    said = page()
    assert "The same endpoint without an order answers 2000 times a second." in " ".join(said.split())
    assert not any(note in said for note in (MISSING, STALE, SHORT))


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?locks=name", ["redis", "redis-py", "thread"]),
        ("?locks=-name", ["thread", "redis-py", "redis"]),
        ("?locks=p50_ms", ["thread", "redis", "redis-py"]),
        ("?locks=-p50_ms", ["redis-py", "redis", "thread"]),
        ("?locks=fairness", ["redis-py", "redis", "thread"]),
        ("?locks=recovery_s", ["redis", "redis-py", "thread"]),
        ("?locks=-recovery_s", ["redis-py", "redis", "thread"]),
        ("?locks=__class__", ["thread", "redis", "redis-py"]),
        ("?locks=%3Cscript%3E&strategies=''", ["thread", "redis", "redis-py"]),
    ],
)
def test_it_is_sorted_as_the_address_says(file: Path, query: str, names: list[str]) -> None:
    file.write_text(json.dumps(STORED))
    assert [row[0].split()[0] for row in rows("locks", query)] == names
    assert rows("strategies", query)[0][0] == "guarded-update"


def test_a_heading_sorts_its_table_and_leaves_the_other_one_as_it_was(file: Path) -> None:
    file.write_text(json.dumps(STORED))
    said = html.unescape(page("?strategies=name&locks=-p95_ms"))
    assert 'aria-sort="descending"><a href="?strategies=name&locks=p95_ms#locks">Wait p95</a>' in said
    assert '<a href="?strategies=p50_ms&locks=-p95_ms#strategies">Wait p50</a>' in said
    assert '<a href="?strategies=-per_s&locks=-p95_ms#strategies">Orders a second</a>' in said


@pytest.mark.parametrize("part", PARTS)
def test_what_is_older_than_the_code_says_so(file: Path, part: Part) -> None:
    old: dict[str, Any] = copy.deepcopy(STORED)
    old[part]["source"] = "0" * 64
    file.write_text(json.dumps(old))
    said = page()
    assert said.count(STALE) == 1
    assert f"manage.py compare {part}" in said


def test_a_short_run_says_so(file: Path) -> None:
    short = copy.deepcopy(STORED)
    short["locks"]["short"] = True
    file.write_text(json.dumps(short))
    assert page().count(SHORT) == 1


def test_the_hash_changes_with_the_code_that_is_measured_and_with_no_other(settings: Any, tmp_path: Path) -> None:
    for name in (
        "locking/redis/lock.py",
        "locking/scripts/a.lua",
        "locking/contrib/django/admin.py",
        "lab/a.py",
        "shop/migrations/1.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "inventory").mkdir()
    settings.BASE_DIR = tmp_path
    hashes = {part: stored.source_hash(part) for part in PARTS}
    for name in ("locking/contrib/django/admin.py", "lab/a.py", "shop/migrations/1.py"):
        (tmp_path / name).write_text("2")
    assert {part: stored.source_hash(part) for part in PARTS} == hashes
    (tmp_path / "locking/scripts/a.lua").write_text("2")
    assert all(stored.source_hash(part) != hashes[part] for part in PARTS)
    (tmp_path / "locking/scripts/a.lua").write_text("1")
    (tmp_path / "shop/orders/checkout.py").write_text("1")
    assert stored.source_hash("locks") == hashes["locks"]
    assert stored.source_hash("strategies") != hashes["strategies"]


def choice() -> list[str]:
    section = "".join(re.findall(r'<section id="choose".*?</section>', page(), re.DOTALL))
    return [html.unescape(re.sub("<.*?>", "", said)) for said in re.findall("<li>(.*?)</li>", section)]


@pytest.mark.parametrize(("per_s", "said"), [(1250.0, "5.0 times"), (500.0, "2.0 times"), (25_000.0, "100 times")])
def test_which_to_choose_is_argued_from_the_figures_that_are_stored(file: Path, per_s: float, said: str) -> None:
    found = copy.deepcopy(STORED)
    found["strategies"]["report"]["strategies"]["guarded-update"]["orders_per_s"] = per_s
    file.write_text(json.dumps(found))
    strategy, library = choice()
    assert "guarded-update, is one statement" in strategy
    assert f"sells {said} as many as redis-lock" in strategy
    assert "85 times sooner than with redis-py" in library


@pytest.mark.parametrize("per_s", [250.0, 270.0, 100.0, 0.0, None])
def test_an_argument_that_the_figures_do_not_bear_out_is_not_made(file: Path, per_s: float | None) -> None:
    found = copy.deepcopy(STORED)
    found["strategies"]["report"]["strategies"]["guarded-update"]["orders_per_s"] = per_s
    file.write_text(json.dumps(found))
    assert not [said for said in choice() if "guarded-update" in said]
    file.write_text(json.dumps({}))
    assert choice() == []
    assert "#choose" not in page()


def test_what_is_argued_with_has_been_measured() -> None:
    """By name: of these the comparison that is stored in the repository knows figures."""
    names = {part: {row.name for row in found.rows} for part in PARTS if (found := stored.load(part))}
    for argument in ARGUMENTS:
        assert {argument.better, argument.worse} <= names[argument.part]


def test_every_rung_that_was_measured_leads_to_its_rows_and_they_lead_back() -> None:
    said = page()
    assert [link for link in re.findall(r'href="#([^"]*)"', said) if f' id="{link}"' not in said] == []
    led = {slug: list(links(slug)) for slug in LADDER}
    sound = {entry.slug for entry in LADDER.values() if entry.claim == "sound"}
    assert {slug for slug, found in led.items() if found} - sound == {"thread-lock", "process-lock"}
    assert [slug for slug in sound if not led[slug]] == []
    for slug, found in led.items():
        for link in found:
            address, _, anchor = link.address.partition("#")
            assert address == PAGE
            (row,) = re.findall(rf'<tr id="{anchor}".*?</tr>', said, re.DOTALL)
            assert f'href="/lab/rungs/{slug}/"' in row


def test_every_rung_that_a_row_is_linked_with_is_on_the_ladder() -> None:
    assert all(slug in LADDER for part in PARTS for slugs in stored.RUNGS[part].values() for slug in slugs)


# The command


@pytest.mark.skipif(
    not zookeeper.available() and not os.environ.get("CI"),
    reason="ZooKeeper is not installed; on Debian: apt-get install zookeeper default-jre-headless",
)
def test_the_command_measures_and_stores_and_keeps_what_it_did_not_measure(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps({"strategies": STORED["strategies"], "locks": {"made": "long ago"}}))
    tiny = ("--only", "thread", "redis-py", "--rounds", "1", "--pairs", "3", "--handoffs", "2", "--seconds", "0.1")
    monkeypatch.setitem(compare.SHORT, "locks", (*tiny, "--idle", "0.1"))
    call_command("compare", "locks", short=True)

    assert capsys.readouterr().out == "locks: stored.\n"
    assert json.loads(file.read_text())["strategies"] == STORED["strategies"]
    measured = stored.load("locks")
    assert measured is not None
    assert (measured.short, measured.stale) == (True, False)
    ours, theirs = measured.rows
    assert (ours.name, ours.rungs, ours.peer, ours.recovery_s) == ("thread", ("thread-lock",), False, None)
    assert (theirs.name, theirs.peer) == ("redis-py", True)
    # It holds for its time to live, since nobody renews it and nobody sees that its holder is dead.
    assert theirs.recovery_s is not None
    assert theirs.recovery_s > 9
    figures = [getattr(row, field) for row in (ours, theirs) for field in Row.__annotations__ if field[0] == "p"]
    assert all(figure is not None for figure in figures)


def test_the_command_names_the_parts_there_are(file: Path) -> None:
    with pytest.raises(CommandError, match="There is no lock to compare; there are strategies and locks"):
        call_command("compare", "lock")
    assert not file.exists()


# Damaged files


def test_a_lock_too_quick_to_be_measured_has_no_rate(file: Path) -> None:
    quick = copy.deepcopy(STORED)
    quick["locks"]["report"]["locks"]["thread"]["pair_us"] = 0
    file.write_text(json.dumps(quick))
    assert rows("locks")[-1] == ["thread", "–", "0.1", "0.2", "1.00", "–"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"locks": {}}', '{"locks": {"report": []}}'])
def test_what_cannot_be_read_was_not_measured(file: Path, text: str) -> None:
    file.write_text(text)
    assert page().count(MISSING) == 2


@pytest.mark.parametrize("figure", ["much", [], {}])
def test_a_figure_that_is_none_is_not_shown(file: Path, figure: Any) -> None:
    odd = copy.deepcopy(STORED)
    odd["locks"]["report"]["locks"]["redis"]["handoff_p50_ms"] = figure
    file.write_text(json.dumps(odd))
    assert page().count(MISSING) == 1
