"""Find and end server processes that a crash left behind."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from servers.errors import ServerError

GRACE = 5.0  # seconds from the stop signal to SIGKILL, and from SIGKILL to giving up


def end_orphans(is_ours: Callable[[list[str]], bool], folder: Path, stop_signal: signal.Signals) -> bool:
    """End the orphans of `folder`, which are servers that an earlier run left behind. Return when they are gone.

    A process is an orphan when `is_ours` accepts its command line and its user owns `folder`.

    Returns:
        Whether there were any orphans.

    Raises:
        ServerError: a process survived SIGKILL.
    """
    if not folder.exists():
        return False
    owner = folder.stat().st_uid
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and is_ours(command) and process.uids().real == owner:
                found.append(process)
    left = found
    for number in (stop_signal, signal.SIGKILL):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        left = _still_alive(left)
    if left:
        raise ServerError(f"Process {left[0].pid} of an earlier run survived SIGKILL. End it, then start again.")
    return bool(found)


def remove_stale_lock_file(lock_file: Path, program: str) -> None:
    """Remove `lock_file` if the process in it is a zombie, or runs another program than `program`.

    Postgres refuses to start while any process has that id. The process may be a zombie, or a later, unrelated program.
    """
    with suppress(OSError, ValueError, IndexError):
        pid = int(lock_file.read_text().split()[0])
        try:
            alive = Path(psutil.Process(pid).cmdline()[0]).name == program
        except psutil.ZombieProcess:
            alive = False
        except psutil.Error:
            return
        if not alive:
            lock_file.unlink()


def _still_alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes still alive after `GRACE`.

    A zombie counts as ended, because a container may never reap it.
    """
    deadline = time.monotonic() + GRACE
    left = list(processes)
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = [process for process in left if _status(process) not in (None, psutil.STATUS_ZOMBIE)]
    return left


def _status(process: psutil.Process) -> str | None:
    with suppress(psutil.NoSuchProcess):
        return str(process.status())
    return None
