"""The page "choose a lock": each set of answers leads to one lock, with a reason against each other lock."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.urls import resolve
from django.utils import translation

from lab.claims import comparisons, staleness
from lab.ladder.catalogue import LADDER, ROOT
from lab.site.choice import guide
from lab.site.choice.decision import SQL, USABLE, because, decide, servers_to_run
from lab.site.choice.questions import QUESTIONS, Answers, address
from lab.site.choice.reasons import RULES, rule_against, why_not
from lab.site.choice.rows import BY_SLUG, ROWS, ChoiceRow
from lab.site.choice.table import BASES
from tests.docs.pages import PAGES
from tests.lab.comparison_support import lock, page, store, stored

pytestmark = pytest.mark.usefixtures("unhashed")

PAGE = "/lab/choice/"
COMPARISON = "/lab/comparison/"
MEASURED = 4
"""Number of columns with stored figures. They come first after the column “when”."""
ALL = [Answers(*answers) for answers in product(*(question.answers for question in QUESTIONS))]
LANGUAGES = ("en", "zh-hans")


def address_of(*answers: str) -> str:
    return address(dict(zip((question.name for question in QUESTIONS), answers, strict=True)))


def cells(slug: str) -> list[str]:
    """Return the texts of a row's cells, without its name and its "when" column."""
    (row,) = re.findall(rf'<tr id="choice-{slug}">.*?</tr>', page(COMPARISON), re.DOTALL)
    return [re.sub("<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)[1:]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_answers_lead_to_a_row_and_a_reason_against_each_other_one(language: str) -> None:
    ended = set()
    with translation.override(language):
        for answers in ALL:
            chosen = decide(answers)
            ended.add(chosen.slug)
            said = because(answers) + [why_not(row, answers) for row in ROWS if row != chosen]
            assert len(said) >= len(ROWS)
            for sentence in said:
                assert re.fullmatch(r"[^{}]+[.。]", sentence), sentence
                assert (language == "en") == sentence.isascii() or "“" in sentence or "’" in sentence, sentence
    assert len(ALL) == 378
    assert ended == {
        *("guarded-update", "group-commit", "queue", "lua", "advisory", "database-row", "thread-lock", "file-lock"),
        *("redis-lock", "segmented", "redlock", "zookeeper", "etcd"),
    }


def test_no_answer_needs_a_server_that_is_not_run_or_a_fence_that_it_lacks() -> None:
    given = {id(rule_against(row, answers)[0]) for answers in ALL for row in ROWS if row != decide(answers)}
    assert [rule.text for rule in RULES if id(rule) not in given] == [], "each reason is given to some answers"
    for answers in ALL:
        row = decide(answers)
        # A lock is chosen only where one SQL statement is not enough, or where there is no Postgres.
        assert row.guarded == (answers.work != "steps" and servers_to_run(answers) in SQL), answers
        assert row.slug not in USABLE or servers_to_run(answers) in USABLE[row.slug], answers
        if row.lock and answers.where == "machines":
            assert row.capabilities.across_machines, answers
            assert row.fenced or answers.mistake == "time", answers
        if row.lock and answers.where == "machine":
            assert row.capabilities.across_processes, answers
        if row.slug == "queue":
            assert answers.work == "queued"
    assert servers_to_run(Answers("process", "statement", "time", "none", "few")) == "none"


REASONS = {
    ("machines steps money redis many", "guarded-update"): "It only takes stock, and your work is more than that.",
    (
        "machines steps money redis rush",
        "redis-lock",
    ): "With one lock, each order of a stock waits for the one before it.",
    ("machines statement money redis few", "redlock"): (
        "It needs several independent Redis servers, which you do not run."
    ),
    ("machines steps money postgres few", "advisory"): (
        "It has no fence: nothing refuses the write of a holder that was paused for too long."
    ),
    ("machines statement money postgres many", "file-lock"): "Other machines do not see it.",
    ("machines statement money redis rush", "queue"): "Its first answer is “queued”, and yours must be final.",
    ("machines statement money redis many", "optimistic"): "On one hot row most of its attempts fail.",
}


@pytest.mark.parametrize(("answers", "slug"), REASONS)
def test_the_reason_follows_from_the_answers(answers: str, slug: str) -> None:
    assert why_not(BY_SLUG[slug], Answers(*answers.split())) == REASONS[answers, slug]


def test_the_questions_are_asked_one_after_the_other_and_each_answer_is_an_address(measured: None) -> None:
    for query in ("?where=mars", "?where=", "?mistake=money", "?servers=redis&where=<b>&work=x"):
        assert QUESTIONS[0].text in page(PAGE + query), "what is no answer is asked again"
    at = PAGE
    for number, question in enumerate(QUESTIONS, 1):
        shown = page(at)
        assert question.text in shown
        assert f"Question {number} of 5" in shown
        links = re.findall(r'<a class="choice" href="([^"]*)">', shown)
        assert len(links) == len(question.answers)
        at = links[0]
    shown = page(at)
    assert '<h2 id="chosen">Guarded update</h2>' in shown
    assert "Why not the others" in shown
    changes = re.findall(r'<a href="([^"]*)">Change', shown)
    assert [question.text in page(change) for question, change in zip(QUESTIONS, changes, strict=True)] == [True] * 5
    assert "<script" not in shown


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_answer_shows_the_row_and_links_that_lead_somewhere(measured: None, language: str) -> None:
    asked = address_of("machines", "statement", "money", "redis", "many")
    shown, table = page(asked, language), page(COMPARISON, language)
    assert ("Group commit" if language == "en" else "组提交") in shown
    anchors = re.findall(rf'href="{COMPARISON}#([^"]*)"', shown)
    assert len(anchors) > len(ROWS)
    assert [anchor for anchor in anchors if f' id="{anchor}"' not in table] == []
    for link in re.findall(r'href="(/lab/[^"]*)"', shown):
        assert resolve(link.partition("#")[0].partition("?")[0]).kwargs.get("slug", "fence") in LADDER, link


def test_figures_are_ratios_of_what_is_stored(measured: None, file: Path) -> None:
    assert cells("guarded-update")[:MEASURED] == ["1.00", "–", "–", "0.02 s"]
    assert cells("redis-lock")[:MEASURED] == ["0.20", "1.00", "0.6", "9.90 s"]
    assert cells("zookeeper")[:MEASURED] == ["not measured"] * MEASURED
    assert cells("thread-lock")[:MEASURED] == ["not measured", "12.50", "0.1", "The lock is gone with its process."]
    # Redisson's way has the figures of its protocol.
    store(file, "locks", "report", "peers", "redisson", value=lock(500.0, 1.2, (1, 9), 9.9))
    # The measured TTL is not the watchdog's default, so the page names the default instead.
    assert cells("redisson")[:MEASURED] == ["not measured", "0.50", "1.2", "At most 30 s, the default of its watchdog."]


def stored_with_all_rows() -> dict[str, Any]:
    comparison = stored()
    report = comparison["strategies"]["report"]
    figures = report["strategies"]["redis-lock"]
    report["strategies"] = {row.strategy: figures for row in ROWS if row.strategy}
    locks = {row.measured_lock: lock(250.0, 0.6, (31, 33), 9.9) for row in ROWS if row.measured_lock}
    comparison["locks"]["report"]["locks"] = locks
    return comparison


def test_a_cell_shows_no_figure_that_is_out_of_date(file: Path) -> None:
    fresh = stored_with_all_rows()
    file.write_text(json.dumps(fresh))
    assert all(figures_of(row) for row in ROWS), "the test must see the figures"
    for part in ("strategies", "locks"):
        fresh[part]["source"] = "0" * 64
    file.write_text(json.dumps(fresh))
    assert [row.slug for row in ROWS if figures_of(row)] == []
    assert cells("redis-lock")[:MEASURED] == ["out of date"] * MEASURED
    shown = page(address_of("machines", "steps", "time", "redis", "few"))
    assert shown.count("out of date") == MEASURED


def figures_of(row: ChoiceRow) -> list[str]:
    found = cells(row.slug)[:MEASURED]
    return [figure for figure in (found if row.silence.measured else found[:-1]) if re.search(r"\d", figure)]


def test_what_is_said_without_a_measurement_has_a_source() -> None:
    for row in ROWS:
        assert row.rung in LADDER
        assert row.silence.source.startswith("https://") or (ROOT / row.silence.source).exists()
        assert row.lock or row.guarded or row.source.startswith("https://")
        assert bool(row.without) == row.capabilities.survives_node_loss
        assert not row.minority or row.minority.startswith("https://")
    shown = page(COMPARISON)
    for source in {row.silence.source for row in ROWS}:
        assert f'<a href="{source}">' in shown or f"<code>{source}</code>" in shown


def test_what_a_dead_machine_means_is_read_from_the_code() -> None:
    machine, network = MEASURED, MEASURED + 1
    assert cells("advisory")[machine] == cells("database-row")[machine] == "40 s, by TCP keepalives."
    assert cells("advisory")[network] == "As with a dead machine. The holder notices after 15 s."
    assert cells("optimistic")[machine] == "10 s after its last statement, by the limit on idle transactions."
    assert cells("guarded-update")[machine] == cells("group-commit")[machine] == cells("lua")[machine]
    assert cells("lua")[machine].startswith("At once: its one statement commits by itself.")
    assert cells("lua")[machine].endswith(" 10 s after its last statement.")


def test_the_page_of_the_documentation_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    # Use the real hash: a documentation page with outdated figures must fail.
    monkeypatch.setattr(comparisons, "behaviour_of_comparison", staleness.behaviour_of_comparison)
    made = guide.markdown({part: comparisons.load(part) for part in BASES})
    assert PAGES["docs/choose.md"] == made, "make it again: manage.py lab table"
    # It shows no figure that is out of date.
    fresh = {part: comparisons.load(part) for part in BASES}
    made = guide.markdown({part: found and replace(found, stale=True) for part, found in fresh.items()})
    assert "The figures are out of date" in made
    cells = [line.split(" | ")[2:5] for line in made.splitlines() if line.startswith("| [")]
    assert len(cells) == len(ROWS)
    assert {cell for row in cells for cell in row} <= {"out of date", "not measured", "–"}


def test_both_tables_of_strategies_say_the_same() -> None:
    table = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGES["docs/choose-strategy.md"], re.MULTILINE)
    written = {name: rest.split(" | ")[1:3] for name, rest in table}
    compared = [row for row in ROWS if row.strategy and not row.measured_lock]
    assert len(compared) == 6
    for row in compared:
        needs, when = written[row.strategy]
        assert row.needs == needs
        assert row.when.lower().rstrip(".").replace("“", '"').replace("”", '"') == when.lower()
