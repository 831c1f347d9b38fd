"""The end of servers that a crash left behind, and who of them is really still alive."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from servers.errors import ServerError

PATIENCE = 5.0  # seconds between asking and killing, and between killing and giving up


def end_orphans(ours: Callable[[list[str]], bool], folder: Path, stop_signal: signal.Signals) -> bool:
    """End the processes whose command line `ours` recognises and whose user owns `folder`; return when they are gone.

    Returns:
        Whether there were any.

    Raises:
        ServerError: one of them survived SIGKILL.
    """
    if not folder.exists():
        return False
    owner = folder.stat().st_uid
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and ours(command) and process.uids().real == owner:
                found.append(process)
    left = found
    for number in (stop_signal, signal.SIGKILL):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        left = _still_alive(left)
    if left:
        raise ServerError(f"Process {left[0].pid} of an earlier run does not end: end it, then start again.")
    return bool(found)


def forget_the_dead(lock_file: Path, program: str) -> None:
    """Remove a lock file that names a process which is not a live `program` any more.

    Postgres takes the number for itself alive while a zombie has it, or another program that got it since.
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
    """Those that have not ended after a while. A zombie has: in a container nobody may ever reap it."""
    deadline = time.monotonic() + PATIENCE
    left = list(processes)
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = [process for process in left if _status(process) not in (None, psutil.STATUS_ZOMBIE)]
    return left


def _status(process: psutil.Process) -> str | None:
    with suppress(psutil.NoSuchProcess):
        return str(process.status())
    return None
