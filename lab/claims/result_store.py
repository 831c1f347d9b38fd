"""Files of JSON that the commands write and the pages read: always whole, whoever writes beside whom."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Kept = TypeVar("Kept")
_told: set[Path] = set()


def read(path: Path, parse: Callable[[Any], Kept], again: str) -> Kept | None:
    """What a file keeps; None when there is none. One that cannot be read counts as none, and that is logged once.

    Args:
        parse: makes something of the JSON.
        again: the command that makes the file anew.
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        if path not in _told:
            _told.add(path)
            logger.error("%s cannot be read (%r). Make it again with: manage.py %s", path, error, again)
        return None


def write(path: Path, said: Any) -> None:
    """Keep something in a file. A folder for it is made if need be."""
    path.parent.mkdir(exist_ok=True)
    with _locked(path.parent):
        _replace(path, said)


def change(path: Path, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Keep in a file what `edit` makes of what is there: an object, which is empty where none can be read."""
    with _locked(path.parent):
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            before = {}
        _replace(path, edit(before if isinstance(before, dict) else {}))


def refuse_unless_writable(folder: Path) -> None:
    """See that files can be kept in a folder, before work is done for nothing.

    Raises:
        OSError: they cannot.
    """
    # The rights alone do not tell: a disk may be read-only, or full.
    with TemporaryFile(dir=folder):
        pass


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """For the block, nobody else writes files in a folder. The folder itself is locked, so no file is left of it."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _replace(path: Path, said: Any) -> None:
    """Write a file beside it and put that in its place: who reads sees the one or the other, and never a part."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps(said, indent=1, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
