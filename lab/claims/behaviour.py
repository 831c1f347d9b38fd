"""The hash of source code: what is kept of a run says which code ran, and is out of date when that has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

ASIDE = frozenset(
    {
        *("migrations", "management", "admin", "templates", "admin.py", "guide.py"),
        *("interrupts.py", "stages.py", "verify.py", "witness.py", "worker.py"),
    }
)
"""Folders and files that no order, no lock and no schedule goes through. How far is searched, as `verify.py` says, is
kept with what came of it; `witness.py` keeps it; the others say which databases a schedule has, and begin and end the
processes."""


def hash_of(*places: Path, without: Collection[str] = ()) -> str:
    """A hash of the Python and Lua in files, and in folders without what is `ASIDE`.

    It is the same wherever the places are.

    Args:
        places: the files and folders. One that is not there has no code.
        without: the names of what else in the folders is set aside.
    """
    aside = ASIDE.union(without)
    digest = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            inside = file.relative_to(place.parent)
            if file.is_file() and file.suffix in {".py", ".lua"} and not aside.intersection(inside.parts):
                digest.update(f"{inside}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()
