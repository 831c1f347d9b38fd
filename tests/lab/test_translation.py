"""The lab in simplified Chinese: every text of its pages is translated, and what is compiled is what was written."""

from __future__ import annotations

import ast
import gettext

import pytest
from django.utils import translation

from lab.explorer.scheduler import CANNOT_ENTER
from lab.ladder.catalogue import ROOT
from lab.site.pages.wording import said
from tests.lab import translations

FOLDER = ROOT / "lab" / "locale" / "zh_Hans" / "LC_MESSAGES"
SAYS_WHY = ("explorer/scheduler", "explorer/history", "checkers/counter", "checkers/stock")
"""The modules of the lab that say how a rung was broken."""


def test_every_text_is_translated_and_nothing_else() -> None:
    written = translations.read(FOLDER / "django.po")
    del written["",]
    assert set(written) == translations.needed()
    assert all(text for texts in written.values() for text in texts)


def test_what_is_compiled_is_what_was_written() -> None:
    with (FOLDER / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for (singular, *plural), (text,) in translations.read(FOLDER / "django.po").items():
        assert (compiled.ngettext(singular, plural[0], 2) if plural else compiled.gettext(singular)) == (
            text if singular else compiled.gettext("")
        )


def whys() -> list[str]:
    """A sentence of each kind that tells how a rung was broken, with a 7 for what differs."""
    found = set()
    for module in SAYS_WHY:
        tree = ast.parse((ROOT / "lab" / f"{module}.py").read_text(encoding="utf-8"))
        raised = {text for node in ast.walk(tree) if isinstance(node, ast.Raise) for text in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr) and node not in raised:
                parts = (part.value if isinstance(part, ast.Constant) else "7" for part in node.values)
                found.add("".join(map(str, parts)))
    stuck = {why.format(who="C") for why in CANNOT_ENTER.values()}
    return sorted(stuck | {text for text in found if text.endswith(".")})


@pytest.mark.parametrize("why", whys())
def test_how_a_rung_was_broken_is_told_in_the_readers_language(why: str) -> None:
    with translation.override("zh-hans"):
        assert said(why) != why
    with translation.override("en"):
        assert said(why) == why


def test_the_names_in_a_sentence_are_joined_in_the_readers_language() -> None:
    with translation.override("zh-hans"):
        assert said("B and C are inside at the same time.") == "B 和 C 同时在里面。"


def test_commands_and_statements_stay_as_they_are() -> None:
    with translation.override("zh-hans"):
        assert said("SET rung:stock … NX PX 30000") == "SET rung:stock … NX PX 30000"
        assert said("") == ""
