"""The source of a rung: the real file, highlighted line by line, and what the next rung changes in it."""

from __future__ import annotations

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

ALIKE = 0.3
"""How much of two files must be the same for their difference to be worth reading, from 0 to 1."""
Kind = Literal["same", "added", "removed", "place"]


@dataclass(frozen=True)
class File:
    """A source file.

    Attributes:
        name: its path, below the project's folder or below that of the installed packages.
        lines: each as HTML.
    """

    name: str
    lines: tuple[SafeString, ...]


def file_of(entry: LadderEntry) -> Path:
    """The file that a rung stands in."""
    return Path(inspect.getfile(entry.code)).resolve()


def segment_name(path: Path) -> str:
    """What a file is called: its path without what differs from machine to machine."""
    parts = path.parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return path.relative_to(ROOT).as_posix()


def files(entry: LadderEntry, others: Iterable[str]) -> list[File]:
    """The file of a rung, and after it the others that its steps came from.

    Args:
        others: their paths below the project's folder.
    """
    own = file_of(entry)
    paths = [own, *(ROOT / name for name in sorted(set(others)))]
    return [highlighted(path) for path in dict.fromkeys(paths)]


@cache
def highlighted(path: Path) -> File:
    """A file of Python."""
    html = highlight(path.read_text(encoding="utf-8"), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return File(segment_name(path), tuple(mark_safe(line) for line in html.splitlines()))  # noqa: S308 - Pygments escapes


def difference(entry: LadderEntry, following: LadderEntry) -> Sequence[tuple[Kind, str]] | None:
    """What another rung's file changes, line by line; None: it is another file altogether."""
    before, after = (file_of(rung).read_text(encoding="utf-8").splitlines() for rung in (entry, following))
    if SequenceMatcher(None, before, after, autojunk=False).ratio() < ALIKE:
        return None
    return [(_kind(line), line) for line in list(unified_diff(before, after, lineterm="", n=2))[2:]]


def _kind(line: str) -> Kind:
    kinds: dict[str, Kind] = {"+": "added", "-": "removed", "@": "place"}
    return kinds.get(line[:1], "same")
