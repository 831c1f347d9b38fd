"""Lines of the code under test in a trace: the line that a thread runs now, and where a stored line is today."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN = tuple(str(ROOT / room) for room in ("lab/ladder", "locking", "inventory"))
"""The folders whose lines are shown. If the call stack has lines in several folders, the earlier folder wins. Lines of
the base classes, in files `rung.py`, are not shown."""


def current_line() -> tuple[str, int]:
    """Return the line of the code under test from which this function was called.

    Returns:
        The file, relative to the project folder, and the line number. If no caller is in a folder of `SHOWN`, the file
        is empty and the number is 0.
    """
    found = "", 0
    best = len(SHOWN)
    frame = sys._getframe(2)
    while frame is not None and best:
        path = frame.f_code.co_filename
        for rank, folder in enumerate(SHOWN[:best]):
            if path.startswith(folder) and not path.endswith("/rung.py"):
                best = rank
                found = relative_line(path, frame.f_lineno)
                break
        frame = frame.f_back  # type: ignore[assignment]
    return found


def relative_line(path: str, line: int) -> tuple[str, int]:
    """Make an absolute path relative to the project folder. Return this path, and the line unchanged."""
    return path[len(str(ROOT)) + 1 :], line


def code_at(file: str, line: int) -> str:
    """Return the text of a line without its indentation; empty if no file is given.

    Args:
        file: path, relative to the project folder; empty if none is known.
        line: line number, from 1.
    """
    return (ROOT / file).read_text(encoding="utf-8").splitlines()[line - 1].strip() if file else ""


def find_line(file: str, line: int, code: str) -> int:
    """Return where a line of a stored trace is today: docstrings and comments may have moved it since.

    Args:
        file: path, relative to the project folder; empty if none is known.
        line: line number when the trace was stored.
        code: text of the line at that time, as `code_at` returns it.

    Returns:
        The number of the nearest line with this text; 0 if the file has none.
    """
    path = ROOT / file
    if not file or not path.is_file():
        return 0
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    same = [number for number, text in lines if text.strip() == code]
    return min(same, key=lambda number: abs(number - line), default=0)
