"""Ownership of a run folder: at most one live process runs its servers."""

import fcntl
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from servers.errors import ServerError


@dataclass(frozen=True)
class Owner:
    """The process that runs the servers of a folder, and the names of these servers.

    `pid` is None until the process has recorded it.
    """

    pid: int | None
    runs: tuple[str, ...]


class Ownership:
    """The right to run the servers of `folder`. The kernel frees this right when the owner ends for any reason.

    Ownership is an flock on the folder itself, which also keeps systemd-tmpfiles from removing old files in the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner_file = folder / "last-unit.owner"
        self._lock: int | None = None

    def take(self, runs: Sequence[str] = ()) -> bool:
        """Make this process the owner, and record the names of the servers that it runs.

        Return False if the folder has an owner already. Call `RunFolder.create` first.
        """
        if (lock := self._locked(fcntl.LOCK_EX)) is None:
            return False
        self._lock = lock
        try:
            with self.owner_file.open("r+") as file:  # `RunFolder.create` makes this file: it marks a run folder
                file.truncate()
                file.write(f"{os.getpid()} {_start_ticks(os.getpid())} {' '.join(runs)}\n")
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Give up ownership. Without ownership, do nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def owner(self) -> Owner | None:
        """Return the live owner, which may be this process; None if the folder has no owner."""
        if not self.folder.is_dir():
            return None
        if (lock := self._locked(fcntl.LOCK_SH)) is not None:
            os.close(lock)
            return None
        with suppress(OSError, ValueError):
            pid, started, *runs = self.owner_file.read_text().split()
            if started == _start_ticks(int(pid)):
                return Owner(int(pid), tuple(runs))
        return Owner(None, ())

    def stop_owner(self, timeout: float = 60.0) -> bool:
        """Send SIGTERM to the owner, and wait until it has ended. Return False if the folder had no owner.

        Raises:
            ServerError: the owner did not end within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        asked = None
        while (owner := self.owner()) is not None:
            if owner.pid is not None and owner.pid != asked:
                asked = owner.pid
                with suppress(ProcessLookupError):
                    os.kill(asked, signal.SIGTERM)
            if time.monotonic() > deadline:
                raise ServerError(
                    f"Process {asked} did not stop the servers of {self.folder} within {timeout:.0f} s. "
                    "End it, then retry."
                )
            time.sleep(0.02)
        return asked is not None

    def _locked(self, kind: int) -> int | None:
        """Open and lock the folder. Return its file descriptor, or None if it is locked already or missing."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(folder, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(folder), self.folder.stat()):
                return folder
        os.close(folder)  # the folder is locked already, or was replaced between our open and our lock
        return None


def _start_ticks(pid: int) -> str:
    """Return when a process started, in ticks since boot. A later process with the same id started at another time."""
    file = Path(f"/proc/{pid}/stat")  # split after the command name in brackets; see proc(5)
    return file.read_text().rpartition(")")[2].split()[19] if file.exists() else "-"
