"""The line of the code under test that a thread is at, as a trace shows it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN = tuple(str(ROOT / room) for room in ("lab/ladder", "locking", "inventory"))
"""The folders whose lines are shown; a line in an earlier folder is preferred."""


def current_line() -> tuple[str, int]:
    """Return the file, relative to the project's folder, and the line that the caller's caller is at.

    Returns:
        Empty and 0 when the thread is in none of the shown folders.
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
    """Return a file, relative to the project's folder, and a line in it."""
    return path[len(str(ROOT)) + 1 :], line
