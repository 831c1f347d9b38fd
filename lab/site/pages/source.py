"""The source of a rung: the real file, highlighted line by line, and its difference from the next rung's file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from functools import cache
from pathlib import Path
from typing import Literal

from django.utils.safestring import SafeString, mark_safe
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from lab.ladder.catalogue import ROOT, LadderEntry

LEAST_SIMILARITY = 0.3
"""Share of two files that must be equal, from 0 to 1, for their difference to be worth reading."""
DiffKind = Literal["same", "added", "removed", "place"]


@dataclass(frozen=True)
class SourceFile:
    """A source file.

    Attributes:
        name: its path below the project folder or below the installed packages.
        lines: each line as HTML.
    """

    name: str
    lines: tuple[SafeString, ...]


def source_files(entry: LadderEntry, others: Iterable[str]) -> list[SourceFile]:
    """Return the file of a rung, and after it the other files in which its steps were taken.

    Args:
        others: paths below the project folder.
    """
    paths = [_path_of(entry), *(ROOT / name for name in sorted(set(others)))]
    # A stored trace may name a file that has moved since.
    return [_highlighted(path) for path in dict.fromkeys(paths) if path.is_file()]


def difference(entry: LadderEntry, following: LadderEntry) -> Sequence[tuple[DiffKind, str]] | None:
    """Return what another rung's file changes, line by line; None: the files have too little in common.

    Docstrings are left out: every rung has its own, and they would hide the few lines of code that differ.
    """
    before, after = (_lines_of_code(_path_of(rung)) for rung in (entry, following))
    if SequenceMatcher(None, before, after, autojunk=False).ratio() < LEAST_SIMILARITY:
        return None
    return [(_kind(line), line) for line in list(unified_diff(before, after, lineterm="", n=2))[2:]]


def _lines_of_code(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            prose.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return [line for number, line in enumerate(source.splitlines(), 1) if number not in prose]


def _path_of(entry: LadderEntry) -> Path:
    return Path(inspect.getfile(entry.code)).resolve()


@cache
def _highlighted(path: Path) -> SourceFile:
    html = highlight(path.read_text(encoding="utf-8"), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return SourceFile(_name_of(path), tuple(mark_safe(line) for line in html.splitlines()))  # noqa: S308 - escaped


def _name_of(path: Path) -> str:
    """Return the path without the part that differs from machine to machine."""
    parts = path.parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return path.relative_to(ROOT).as_posix()


def _kind(line: str) -> DiffKind:
    kinds: dict[str, DiffKind] = {"+": "added", "-": "removed", "@": "place"}
    return kinds.get(line[:1], "same")
