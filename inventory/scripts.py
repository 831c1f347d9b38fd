"""The Lua scripts of the stock counters and of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDERS = tuple(Path(__file__).parent / room / "lua" for room in ("counters", "queue"))
SHARED = FOLDERS[0] / "items_of.lua"


@cache
def script(name: str) -> str:
    """Return the text of a script, by the name of its file. Each script begins with the shared `items_of.lua`."""
    (path,) = (path for folder in FOLDERS if (path := folder / f"{name}.lua").exists())
    return f"{SHARED.read_text(encoding='utf-8')}\n{path.read_text(encoding='utf-8')}"


def all_scripts() -> Mapping[str, str]:
    """Return the text of every script by its name."""
    return {path.stem: script(path.stem) for folder in FOLDERS for path in sorted(folder.glob("*.lua"))}
