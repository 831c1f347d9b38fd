"""The lab in simplified Chinese: every text is translated, and the .mo file matches the .po file."""

from __future__ import annotations

import ast
from typing import get_args

import pytest
from django.utils import translation

from lab.explorer.scheduler import CANNOT_ENTER
from lab.explorer.terms import FAULT_TEXTS, Fault, Invariant
from lab.ladder.catalogue import LADDER, ROOT
from lab.site.choice.rows import ROWS
from lab.site.wording import translated
from tests.translation import Texts, assert_compiled, assert_complete, texts_of

LAB = ROOT / "lab"
FOLDER = LAB / "locale" / "zh_Hans" / "LC_MESSAGES"
EXPLAINING = ("explorer/scheduler", "explorer/history", "checkers/counter", "checkers/stock")
"""The modules with the sentences that explain how a rung was broken."""


def test_every_text_is_translated_and_nothing_else_and_compiled() -> None:
    assert_complete(FOLDER, needed())
    assert_compiled(FOLDER)


def explanations() -> list[str]:
    """Return each sentence that explains how a rung was broken, with a 7 in place of each value."""
    found = set()
    for module in EXPLAINING:
        tree = ast.parse((ROOT / "lab" / f"{module}.py").read_text(encoding="utf-8"))
        raised = {text for node in ast.walk(tree) if isinstance(node, ast.Raise) for text in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr) and node not in raised:
                parts = (part.value if isinstance(part, ast.Constant) else "7" for part in node.values)
                found.add("".join(map(str, parts)))
    stuck = {sentence.format(who="C") for sentence in CANNOT_ENTER.values()}
    return sorted(stuck | {text for text in found if text.endswith(".")})


@pytest.mark.parametrize("sentence", explanations())
def test_an_explanation_is_translated(sentence: str) -> None:
    with translation.override("zh-hans"):
        assert translated(sentence) != sentence
    with translation.override("en"):
        assert translated(sentence) == sentence


def test_names_are_joined_in_chinese_and_commands_stay() -> None:
    with translation.override("zh-hans"):
        assert translated("B and C are inside at the same time.") == "B 和 C 同时在里面。"
        assert all(translated(text) == text for text in ("SET rung:stock … NX PX 30000", ""))


def needed() -> set[Texts]:
    """Return every text of the lab's pages, alone or as a pair of singular and plural."""
    of_rungs = {text for entry in LADDER.values() for text in (entry.title, entry.flaw) if text}
    # Most of these texts are in lab/site/choice/lock_entries.py.
    of_locks = {text for row in ROWS for text in (row.needs, row.when)}
    terms = {*get_args(Fault), *get_args(Invariant), *FAULT_TEXTS.values()}
    modules = (file for folder in ("site", "templatetags") for file in (LAB / folder).rglob("*.py"))
    of_pages = texts_of(modules, (LAB / "templates").rglob("*.html"))
    return of_pages | {(text,) for text in {*terms, *of_rungs, *of_locks}}
