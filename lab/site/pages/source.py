"""The source code of a rung (a lock or way of selling): its important lines, and the diff to its fix."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
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

from lab.checkers.counter import STOCK
from lab.explorer.trace import Step
from lab.ladder.catalogue import ROOT, LadderEntry
from lab.site.pages.excerpt import MOST_LINES, lines_that_matter
from lab.workloads import counter

LEAST_SIMILARITY = 0.3
"""Smallest similarity of two rungs' code, from 0 to 1, at which their diff is shown."""
CONTEXT = 8
"""Number of unchanged lines that a diff shows before and after a change."""
DiffKind = Literal["same", "added", "removed", "place"]


@dataclass(frozen=True)
class SourceFile:
    """A source file.

    Attributes:
        name: its path, relative to the project folder or to the installed packages.
        lines: each line as HTML.
        excerpt: the lines to show, as pairs of number and HTML. Number 0 stands for a gap.
    """

    name: str
    lines: tuple[SafeString, ...]
    excerpt: tuple[tuple[int, SafeString], ...]


def source_files(entry: LadderEntry, steps: Iterable[Step]) -> list[SourceFile]:
    """Return the file of a rung, followed by all other files with a line that ran one of these steps."""
    used: dict[Path, set[int]] = defaultdict(set)
    for step in steps:
        file, line = place_of(step)
        if file:
            used[ROOT / file].add(line)
    own = _path_of(entry)
    # A stored trace may name a file that was moved later.
    others = sorted(path for path in used if path != own and path.is_file())
    files = [_file(path, used[path], whole=path == own) for path in (own, *others)]
    return [file for file in files if file.excerpt]


def place_of(step: Step) -> tuple[str, int]:
    """Return the file, relative to the project folder, and the number of the line that ran a step.

    If the pages show no line for the step, the file is empty and the number is 0.
    """
    if not step.file and step.does.startswith((f"GET {STOCK}", f"SET {STOCK} ")):
        # Clients sell outside of the lock's code: show the line that sells.
        return _place_of_sale()
    return step.file, step.line


@cache
def _place_of_sale() -> tuple[str, int]:
    lines, first = inspect.getsourcelines(counter.sell)
    return _name_of(Path(counter.__file__)), first + next(n for n, line in enumerate(lines) if "client.set(" in line)


def whole_file(entry: LadderEntry) -> SourceFile:
    """Return the file of a rung with all its lines."""
    return _file(_path_of(entry), whole=True)


def short_code(entry: LadderEntry) -> SourceFile | None:
    """Return the code of a rung. None if it is too long to be read beside another rung's."""
    file = whole_file(entry)
    return file if 0 < len(file.excerpt) <= MOST_LINES else None


def difference(entry: LadderEntry, following: LadderEntry) -> Sequence[tuple[DiffKind, str]] | None:
    """Return the diff from a rung's code to another's, line by line. None if they have too little in common.

    Imports, docstrings and claims are left out: every rung has its own, and they would hide the few lines that matter.
    """
    before, after = (_code(_path_of(rung)) for rung in (entry, following))
    if not before or not after or SequenceMatcher(None, before, after, autojunk=False).ratio() < LEAST_SIMILARITY:
        return None
    lines = list(unified_diff(before, after, lineterm="", n=CONTEXT))[2:]
    # Skip the first line with `@@`, which says only that the code begins here.
    return [(_kind(line), "⋯" if line.startswith("@@") else line) for line in lines[1:]]


def _code(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    shown = [lines[number - 1] if number else "" for number in lines_that_matter(path, whole=True)]
    # Replace the name of the class: it differs in every rung, but this is no real difference.
    return [re.sub(r"^class \w+", "class …", line) for line in shown]


def _path_of(entry: LadderEntry) -> Path:
    return Path(inspect.getfile(entry.code)).resolve()


def _file(path: Path, used: Iterable[int] = (), *, whole: bool) -> SourceFile:
    lines, numbers = _highlighted(path), lines_that_matter(path, whole=whole, used=set(used))
    shown = tuple((number or 0, lines[number - 1] if number else SafeString()) for number in numbers)
    return SourceFile(_name_of(path), lines, shown)


@cache
def _highlighted(path: Path) -> tuple[SafeString, ...]:
    html = highlight(path.read_text(encoding="utf-8"), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    # Let long lines wrap after a bracket.
    return tuple(mark_safe(line.replace("(", "(<wbr>")) for line in html.splitlines())  # noqa: S308 - escaped


def _name_of(path: Path) -> str:
    """Return a path without the part that differs between machines."""
    parts = path.parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return path.relative_to(ROOT).as_posix()


def _kind(line: str) -> DiffKind:
    kinds: dict[str, DiffKind] = {"+": "added", "-": "removed", "@": "place"}
    return kinds.get(line[:1], "same")
