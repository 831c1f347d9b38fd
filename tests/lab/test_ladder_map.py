"""The ladder page: levels and filter. The page of a rung: its code, story and sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from lab.claims import witness
from lab.explorer.trace import Step
from lab.ladder.catalogue import LADDER
from lab.site.pages import excerpt, lessons, source
from lab.site.pages.ladder_map import searched_text
from lab.site.pages.levels import LEVELS, levels_of
from lab.site.pages.rung_results import results_of
from lab.site.pages.texts import ARTICLES, TRACKS
from tests.docs.pages import PAGES

FLAWED = [entry for entry in LADDER.values() if entry.flaw]


STOCK_LEVEL, STOCK_RUNGS = next(levels_of("stock"))
FILTERS: dict[str, tuple[dict[str, str], Any]] = {
    "nothing": ({}, lambda entry: True),
    "a track": ({"track": "stock"}, lambda entry: entry.track == "stock"),
    "a claim": ({"claim": "sound"}, lambda entry: entry.flaw is None),
    "a level": ({"level": STOCK_LEVEL.name}, lambda entry: entry in STOCK_RUNGS),
    "words": ({"text": "OWNER  lua"}, lambda entry: all(word in searched_text(entry) for word in ("owner", "lua"))),
    "a name": ({"text": "set-nx-ex"}, lambda entry: entry.slug == "set-nx-ex"),
    "all at once": (
        {"track": "locks", "claim": "flawed", "level": "redlock", "text": "node"},
        lambda entry: (
            entry.slug in ("redlock-no-fsync", "redlock-replicated-nodes", "redlock-clock-jump")
            and "node" in searched_text(entry)
        ),
    ),
    "nonsense": ({"track": "moon", "claim": "perhaps", "level": "-1"}, lambda entry: True),
    "no such words": ({"text": "<script>"}, lambda entry: False),
}


@pytest.mark.django_db
@pytest.mark.usefixtures("unhashed")
@pytest.mark.parametrize(("query", "wanted"), FILTERS.values(), ids=FILTERS)
def test_the_server_filters_the_ladder_and_hides_what_is_empty(query: dict[str, str], wanted: Any) -> None:
    page = Client().get("/lab/", query).content.decode()
    rows = re.findall(r'<li class="rung[^>]*?( hidden)?>.*?href="/lab/rungs/([\w-]+)/"', page, flags=re.DOTALL)
    assert len(rows) == len(LADDER)
    found = [slug for hidden, slug in rows if not hidden]
    assert f"{len(found)} of {len(LADDER)} rungs" in page
    assert found == [slug for slug, entry in LADDER.items() if wanted(entry)]
    rungs = {
        rung.slug: (level.name, level.track) for track in TRACKS for level, rungs in levels_of(track) for rung in rungs
    }
    for kind, names in (
        ("level", {rungs[slug][0] for slug in found}),
        ("track", {rungs[slug][1] for slug in found}),
    ):
        sections = re.findall(rf'<section class="{kind}" aria-labelledby="(?:level-)?([\w-]+)"( hidden)?>', page)
        assert {name for name, hidden in sections if not hidden} == names
        assert len(set(sections)) == len({"level": LEVELS, "track": TRACKS}[kind])
    assert re.search(r'<form [^>]*method="get".*<button class="button quiet">Filter', page, re.DOTALL)
    (hidden,) = re.findall(r'<a id="all" href="/lab/#filter"( hidden)?>Show all rungs</a>', page)
    assert bool(hidden) is (len(found) == len(LADDER))


CLAIMS = re.compile(r"^(?:from .* import|import |    (?:slug|title|flaw|survives|fixed_by|source) =)", re.MULTILINE)


def test_the_excerpt_has_code_only() -> None:
    for slug, entry in LADDER.items():
        trace = witness.trace(slug)
        files = source.source_files(entry, trace.steps if trace else ())
        code = "".join(re.sub("<[^>]*>", "", line) + "\n" for file in files for _number, line in file.excerpt)
        assert CLAIMS.findall(code) == []
        assert "Flawed:" not in code
        for step in trace.steps if trace else ():
            numbers = {file.name: [number for number, _line in file.excerpt] for file in files}
            assert not step.file or step.line in numbers[step.file], (step.file, step.line)
        if entry.flaw:
            assert files[0].name == entry.file, slug


def test_of_a_long_file_only_functions_that_took_a_step_are_shown() -> None:
    renewal = LADDER["renewal"]
    assert source.source_files(renewal, ()) == []
    first = next(number for number, line in enumerate(source.whole_file(renewal).lines, 1) if "_release" in line)
    step = Step("A", "A", "", "redis", renewal.file, first, False, {}, (), (), ())
    (file,) = source.source_files(renewal, [step])
    code = [re.sub("<[^>]*>", "", line) for _number, line in file.excerpt]
    assert sum(line.lstrip().startswith("def ") for line in code) == 1
    assert len(code) < len(file.lines) / 3


def code_lines(file: Path) -> set[str]:
    """Return the lines of a file without imports and docstrings."""
    tree, lines = ast.parse(file.read_text()), file.read_text().splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return set(lines)


def noise_of_differences() -> dict[str, list[str]]:
    """Return those lines of each rung's difference from its fix that are no whole lines of code."""
    found: dict[str, list[str]] = {}
    for entry in FLAWED:
        fix = LADDER[entry.fixed_by or ""]
        if (changes := source.difference(entry, fix)) is None:
            continue
        code = {"", *code_lines(source._path_of(entry)), *code_lines(source._path_of(fix))}
        shown = [line for kind, line in changes if kind != "place"]
        found[entry.slug] = [
            line
            for line in shown
            if not (line[1:] in code or line[1:].startswith("class …"))
            or re.match(r".    (slug|title|flaw|fixed_by|source) =", line)
        ]
    return found


def test_every_difference_from_a_fix_has_whole_lines_of_code_and_no_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: if docstrings are not left out, some differences contain them."""
    noise = noise_of_differences()
    assert len(noise) > 20
    assert {slug: lines for slug, lines in noise.items() if lines} == {}
    monkeypatch.setattr(excerpt, "_docstring_lines", lambda tree: set())
    assert any(noise_of_differences().values())


def test_the_documentation_names_the_sales_with_few_schedules(unhashed: None) -> None:
    results = map(results_of, LADDER.values())
    few = {each.entry.slug: each.verdict["schedules"] for each in results if each.verdict and each.few_schedules}
    sentence = PAGES["docs/search.md"].partition('"All" may be few')[2].partition(".")[0]
    assert {slug: int(schedules) for schedules, slug in re.findall(r"(\d+) for `([\w-]+)`", sentence)} == few


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_story_has_three_sentences_and_articles_are_named_by_their_titles(language: str) -> None:
    with translation.override(language):
        stories = [lessons.story(entry) for entry in LADDER.values()]
    assert all(0 < len(told) <= lessons.SENTENCES for told in stories)
    for sentence in (sentence for told in stories for sentence in told):
        words = re.sub("<[^>]*>", "", sentence)
        assert re.search(r"[.?!。？！)）]$", words.strip()), words
        assert "`" not in words
    # Articles are named by their titles.
    numbers = re.compile(rf"(?<![\d.,])({'|'.join(ARTICLES)})(?!\d)")
    with translation.override(language):
        prose = [str(lessons.lesson(slug)) for slug in LADDER] + [str(lessons.essay(name)) for name in lessons.ESSAYS]
        title = lessons._(ARTICLES["001"])
    assert [numbers.findall(re.sub("<code>.*?</code>", "", text)) for text in prose if numbers.search(text)] == []
    assert any(title in text for text in prose)


def test_a_lesson_has_the_same_parts_in_both_languages() -> None:
    found = []
    for code in ("en", "zh-hans"):
        with translation.override(code):
            found.append([str(lessons.lesson(slug)) for slug in LADDER])
    for slug, english, chinese in zip(LADDER, *found, strict=True):
        assert [prose.count("<h3>") for prose in (english, chinese)] == [5, 5], slug
        assert english.count("<p>") == chinese.count("<p>"), slug
        assert english != chinese, slug
        assert "<script" not in english + chinese, slug
