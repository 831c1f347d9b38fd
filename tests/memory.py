"""A RAM folder for all files of a test run, if there is room: on a disk, a third of the run is spent writing.

No test needs a disk, because the files of a killed process survive in memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - mkdir fails if another user made the folder
PREFIX = "lu-tests-"
ROOM = 4 << 30
"""Bytes that must be free: several times what a test run needs."""


def use() -> Path | None:
    """Create the folder and make it the place of temporary files for this process and its children.

    Returns:
        The folder, or None when `TMPDIR` is set or memory is unsuitable. Docker, for example, gives a container 64 MB
        and forbids executing files there.
    """
    if "TMPDIR" in os.environ:
        return None
    try:
        about = os.statvfs(MEMORY)
        if about.f_flag & os.ST_NOEXEC or about.f_bavail * about.f_frsize < ROOM:
            return None
        sweep()
        folder = MEMORY / f"{PREFIX}{os.getpid()}"
        folder.mkdir()
    except OSError:
        return None
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def sweep() -> None:
    """Remove the folders of test runs whose process has ended."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(folder, ignore_errors=True)
