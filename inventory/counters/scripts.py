"""Loads the Lua scripts of the stock counters and of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

INVENTORY = Path(__file__).parent.parent
FOLDERS = (INVENTORY / "counters" / "lua", INVENTORY / "queue" / "lua")
SHARED = "items_of"
"""Name of the script with shared code. Its text is put before the text of every other script."""


def script(name: str) -> str:
    """Return the text of a script by the name of its file, with the text of the shared script before it."""
    return f"{_read(SHARED)}\n{_read(name)}"


def all_scripts() -> Mapping[str, str]:
    """Return the text of every script by the name of its file."""
    return {path.stem: script(path.stem) for folder in FOLDERS for path in sorted(folder.glob("*.lua"))}


def _read(name: str) -> str:
    (path,) = (path for folder in FOLDERS if (path := folder / f"{name}.lua").is_file())
    return path.read_text(encoding="utf-8")
