"""JSON files that commands write and pages read. Readers see only complete files, and no write is lost."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_logged: set[Path] = set()
"""The damaged files that were already logged."""


def read(path: Path, parse: Callable[[Any], Result], again: str) -> Result | None:
    """Read a file. Return None if it does not exist or cannot be read. If it cannot be read, log that once.

    Args:
        parse: converts the JSON to the result. It must not modify the JSON, which later callers get, too.
        again: the command that writes the file again.
    """
    try:
        about = path.stat()
        return parse(_parsed(path, about.st_ino, about.st_mtime_ns, about.st_size))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        if path not in _logged:
            _logged.add(path)
            logger.error("%s cannot be read (%r). Make it again with: manage.py %s", path, error, again)
        return None


@lru_cache(maxsize=4)
def _parsed(path: Path, *version: int) -> Any:
    """Return the parsed JSON of a file. It is cached, because the ladder page reads two files for each rung.

    Args:
        version: numbers that change with the file.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, value: Any) -> None:
    """Write a file. Create its folder if needed."""
    path.parent.mkdir(exist_ok=True)
    with _locked(path.parent):
        _replace(path, value)


def change(path: Path, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace the object in a file by the result of `edit`. A missing or damaged file counts as an empty object."""
    with _locked(path.parent):
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            before = {}
        _replace(path, edit(before if isinstance(before, dict) else {}))


def refuse_unless_writable(folder: Path) -> None:
    """Check that files can be written in a folder.

    Raises:
        OSError: files cannot be written there.
    """
    # Create a file. A check of the permissions is not enough, because the disk may be read-only or full.
    with TemporaryFile(dir=folder):
        pass


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Inside the `with` block, keep other writers out of a folder. Lock the folder itself, to leave no lock file."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _replace(path: Path, value: Any) -> None:
    """Write a new file and rename it, so that a reader sees the old or the new file, never a part of a file."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
