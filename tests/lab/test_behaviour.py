"""A stored result is out of date when the behaviour of the code that its rung runs has changed, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.claims.behaviour import Module, lua_text

BEFORE = """
from time import monotonic as clock

LIMIT = 3

def take(left: int, *, wanted: int = 1) -> bool:
    '''Take units.'''
    # Never below zero.
    enough = left >= wanted
    return enough and clock() < LIMIT
"""


def normalised(source: str, tmp_path: Path) -> str:
    (tmp_path / "module.py").write_text(source)
    return "\n".join(
        unit.text
        for name in ("take", "LIMIT")
        for _, unit in Module("module", tmp_path / "module.py").units(name, "", frozenset())
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("'''Take units.'''", "'''Something else.'''", id="docstring"),
        pytest.param("    '''Take units.'''\n", "", id="no docstring"),
        pytest.param("# Never below zero.", "# Another reason.", id="comment"),
        pytest.param("left: int", "left: float", id="annotation"),
        pytest.param("LIMIT = 3", "LIMIT: int = 3\n", id="annotation of a constant"),
        pytest.param("enough", "is_enough", id="name of a local"),
        pytest.param("left >= wanted", "(left\n        >= wanted)", id="formatting"),
        pytest.param("monotonic as clock", "monotonic as clock\nimport os", id="unused import"),
    ],
)
def test_prose_and_names_of_locals_are_no_behaviour(old: str, new: str, tmp_path: Path) -> None:
    after = BEFORE.replace(old, new)
    assert after != BEFORE
    assert normalised(after, tmp_path) == normalised(BEFORE, tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(">=", ">", id="operator"),
        pytest.param("LIMIT = 3", "LIMIT = 4", id="literal"),
        pytest.param("    return", "    left += 1\n    return", id="statement"),
        pytest.param("clock() <", "id() <", id="callee"),
        pytest.param("from time import monotonic", "from time import perf_counter", id="what an import leads to"),
        pytest.param("wanted", "units", id="name of an argument"),
        pytest.param("= 1)", "= 2)", id="default"),
        pytest.param("*, wanted", "wanted", id="kind of an argument"),
    ],
)
def test_a_change_of_behaviour_is_noticed(old: str, new: str, tmp_path: Path) -> None:
    assert normalised(BEFORE.replace(old, new), tmp_path) != normalised(BEFORE, tmp_path)


def test_lua_counts_without_comments_and_blank_lines() -> None:
    before = "-- Takes.\nif left >= 1 then\n    return 1 -- taken\nend\n"
    assert lua_text(before) == lua_text("if left >= 1 then\n\n  return 1\nend")
    assert lua_text(before) != lua_text(before.replace(">=", ">"))
    assert lua_text('return "a--b"') == 'return "a--b"'
