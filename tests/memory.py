"""A folder in memory for all that a run of the tests writes, where there is room for it.

On a disk a third of the time is spent waiting for it. No test is about that: what a process had written when it was
killed is there in either.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - mkdir refuses what somebody else has made there
PREFIX = "lu-tests-"
ROOM = 4 << 30
"""Bytes: several times what a run needs."""


def use() -> Path | None:
    """Make the folder, let temporary files of this process and its children be made there, and return it.

    Returns:
        None where `TMPDIR` says where they shall be, and where they cannot be in memory: Docker gives a container 64 MB
        for that, and lets nothing there be executed.
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
    """Remove what runs have left that were killed."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(folder, ignore_errors=True)
