"""The folder with the metrics of all processes of a machine, so that any web process can add them up.

A process locks a slot in the folder, such as `web-0`, until the process ends. The kernel also frees the slot of a
killed process. The next process of the same role takes the slot and continues its counts. So counts never decrease
while any process runs, and there are only as many slots as processes that ran at the same time. The gauges of a dead
process are ignored.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

ROLES = ("web", "worker", "beat")
BYTES = 256 * 1024
"""Bytes that a new file reserves on the disk. Writing into a mapped file on a full disk would kill the process."""
KINDS = ("counter", "histogram", "gauge_livesum", "gauge_livemax", "gauge_livemostrecent")
"""Kinds of metrics, which prometheus_client uses as prefixes of the file names of a process."""


class MetricsFolder:
    """The folder and its slots.

    Args:
        path: path of the folder. The first process that takes a slot creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def take_slot(self, role: str) -> str:
        """Take a free slot of a role until this process ends. If no other process has a slot, delete all old counts.

        Raises:
            OSError: the folder cannot be used, or the disk is full.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        with self._locked():
            if not self._taken():
                for file in self.path.glob("*.db"):
                    file.unlink()
            slot = next(name for name in (f"{role}-{number}" for number in count()) if self._take(name))
            for file in self.path.glob(f"gauge_*_{slot}.db"):
                file.unlink()
            for kind in KINDS:
                _reserve(self.path / f"{kind}_{slot}.db")
        return slot

    def taken(self) -> list[str]:
        """Return the slots of all living processes, sorted."""
        with self._locked():
            return self._taken()

    def files(self) -> list[str]:
        """Return the files to add up: all except the gauges of dead processes."""
        with self._locked():
            alive = self._taken()
            files = sorted(self.path.glob("*.db"))
        return [str(file) for file in files if not file.name.startswith("gauge_") or _slot_of(file) in alive]

    def _taken(self) -> list[str]:
        return sorted(file.stem for file in self.path.glob("*.slot") if not self._is_free(file))

    def _take(self, slot: str) -> bool:
        file = os.open(self.path / f"{slot}.slot", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        return True  # Keep the file open, so that the lock lasts until the process ends.

    @staticmethod
    def _is_free(file: Path) -> bool:
        with file.open() as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Context manager: only one process at a time takes a slot or reads which slots are taken."""
        with os.fdopen(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _reserve(path: Path) -> None:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        if os.fstat(file.fileno()).st_size < BYTES:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, BYTES)
            else:  # macOS
                os.ftruncate(file.fileno(), BYTES)


def _slot_of(file: Path) -> str:
    return file.stem.rpartition("_")[2]
