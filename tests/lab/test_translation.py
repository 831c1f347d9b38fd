"""The lab in simplified Chinese: every text is translated, and the compiled file matches the written one."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from babel.messages.pofile import read_po
from django.utils import translation
from django.utils.translation.template import templatize

from lab.explorer.scheduler import CANNOT_ENTER
from lab.explorer.terms import FAULT_TEXTS, Fault, Invariant
from lab.ladder.catalogue import LADDER, ROOT
from lab.site.choice.rows import ROWS
from lab.site.wording import translated

LAB = ROOT / "lab"
FOLDER = LAB / "locale" / "zh_Hans" / "LC_MESSAGES"
TEXTS_OF_A_CALL = {"_": 1, "gettext": 1, "gettext_noop": 1, "gettext_lazy": 1, "ngettext": 2}
Texts = tuple[str, ...]
EXPLAINING = ("explorer/scheduler", "explorer/history", "checkers/counter", "checkers/stock")
"""The modules that say how a rung was broken."""


def test_every_text_is_translated_and_nothing_else() -> None:
    entries = written()
    assert set(entries) == needed()
    assert all(text for texts in entries.values() for text in texts)


def test_the_compiled_file_matches_the_written_one() -> None:
    with (FOLDER / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for (singular, *plural), (text,) in written().items():
        assert (compiled.ngettext(singular, plural[0], 2) if plural else compiled.gettext(singular)) == text


def explanations() -> list[str]:
    """Return a sentence of each kind that tells how a rung was broken, with a 7 for each value."""
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


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("B and C are inside at the same time.", "B 和 C 同时在里面。"),
        ("SET rung:stock … NX PX 30000", "SET rung:stock … NX PX 30000"),
        ("", ""),
    ],
)
def test_names_are_joined_in_chinese_and_commands_stay(text: str, chinese: str) -> None:
    with translation.override("zh-hans"):
        assert translated(text) == chinese


# Texts in the code and texts in the .po file


def needed() -> set[Texts]:
    """Return every text of the lab's pages, alone or as a pair of singular and plural."""
    of_rungs = {text for entry in LADDER.values() for text in (entry.title, entry.flaw) if text}
    of_locks = {text for row in ROWS for text in (row.needs, row.when)}  # Most are in locking/guide.py.
    terms = {*get_args(Fault), *get_args(Invariant), *FAULT_TEXTS.values()}
    found: set[Texts] = {(text,) for text in {*terms, *of_rungs, *of_locks}}
    for folder in ("site", "templatetags"):
        for file in sorted((LAB / folder).rglob("*.py")):
            found.update(_in_code(ast.parse(file.read_text(encoding="utf-8"))))
    for file in sorted((LAB / "templates").rglob("*.html")):
        found.update(_in_template(file))
    return found


def _in_code(tree: ast.AST) -> Iterator[Texts]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TEXTS_OF_A_CALL:
            texts = node.args[: TEXTS_OF_A_CALL[node.func.id]]
            if isinstance(texts[0], ast.Constant):
                yield tuple(ast.literal_eval(text) for text in texts)


def _in_template(file: Path) -> Iterator[Texts]:
    # Django turns a template into gettext calls between text that is not Python, as it does for xgettext.
    for plural, call in re.findall(
        r" (n?)gettext\((.*?)(?:, *count)?\) ", templatize(file.read_text(encoding="utf-8"))
    ):
        texts = ast.literal_eval(f"({call},)")
        assert len(texts) == 1 + bool(plural)
        yield texts


def written() -> dict[Texts, Texts]:
    """Return the texts of the .po file and their translations."""
    with (FOLDER / "django.po").open("rb") as file:
        messages = [message for message in read_po(file, locale="zh_Hans") if message.id]
    as_tuple = lambda texts: tuple(texts) if isinstance(texts, list | tuple) else (texts,)  # noqa: E731
    return {as_tuple(message.id): as_tuple(message.string) for message in messages}
