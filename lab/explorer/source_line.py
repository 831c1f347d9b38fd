"""Find the line of the code under test that a thread runs now, to show it in a trace."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN = tuple(str(ROOT / room) for room in ("lab/ladder", "locking", "inventory"))
"""The folders whose lines are shown. If the call stack has lines in several folders, the earlier folder wins."""


def current_line() -> tuple[str, int]:
    """Return the line of the code under test from which this function was called.

    Returns:
        The file, relative to the project folder, and the line number. Empty and 0 if no caller is in a shown folder.
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
    """Return a file, relative to the project folder, and a line in it."""
    return path[len(str(ROOT)) + 1 :], line
