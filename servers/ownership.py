"""Who runs the servers of a folder now: at most one live process, and the kernel knows which."""

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
    """The process that runs a folder's servers, and which; it has not said yet when `pid` is None."""

    pid: int | None
    runs: tuple[str, ...]


class Ownership:
    """The right to run the servers of `folder`, which the kernel takes back when its holder ends, however it ends.

    It is a lock (flock) on the folder itself: that also keeps systemd-tmpfiles from clearing old files out of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.note = folder / "last-unit.owner"
        self._lock: int | None = None

    def take(self, runs: Sequence[str] = ()) -> bool:
        """Become the one who runs the servers `runs`; False while somebody is. `RunFolder.create` comes first."""
        if (lock := self._locked(fcntl.LOCK_EX)) is None:
            return False
        self._lock = lock
        try:
            with self.note.open("r+") as note:  # not made here: it is what tells a run folder from any other
                note.truncate()
                note.write(f"{os.getpid()} {_started(os.getpid())} {' '.join(runs)}\n")
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Give up what `take` gave us, if it did."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def owner(self) -> Owner | None:
        """The live process that holds the claim, maybe ourselves; None when nobody does."""
        if not self.folder.is_dir():
            return None
        if (lock := self._locked(fcntl.LOCK_SH)) is not None:
            os.close(lock)
            return None
        with suppress(OSError, ValueError):
            pid, started, *runs = self.note.read_text().split()
            if started == _started(int(pid)):
                return Owner(int(pid), tuple(runs))
        return Owner(None, ())

    def stop_owner(self, timeout: float = 60.0) -> bool:
        """Ask the owner to end (SIGTERM), and wait until it gave up its claim; False when there is none.

        Raises:
            ServerError: it did not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        asked = None
        while (owner := self.owner()) is not None:
            if owner.pid is not None and owner.pid != asked:
                asked = owner.pid
                with suppress(ProcessLookupError):
                    os.kill(asked, signal.SIGTERM)
            if time.monotonic() > deadline:
                raise ServerError(f"Process {asked} did not stop the servers of {self.folder} within {timeout:.0f} s.")
            time.sleep(0.02)
        return asked is not None

    def _locked(self, kind: int) -> int | None:
        """The folder, open and locked; None while another lock is in the way."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(folder, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(folder), self.folder.stat()):
                return folder
        os.close(folder)  # it is taken, or was deleted between our open and our lock
        return None


def _started(pid: int) -> str:
    """When a process started, in ticks since boot, so that a number given anew is not taken for it."""
    file = Path(f"/proc/{pid}/stat")  # the fields after the command's name in brackets; see proc(5)
    return file.read_text().rpartition(")")[2].split()[19] if file.exists() else "-"
