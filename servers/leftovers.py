"""The end of servers that a crash left behind."""

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from servers.errors import ServerError


def end_leftovers(ours: Callable[[list[str]], bool], folder: Path, stop_signal: signal.Signals) -> bool:
    """End the processes whose command line `ours` recognises and whose user owns `folder`; return when they are gone.

    Returns:
        Whether there were any.

    Raises:
        ServerError: one of them outlived SIGKILL for 5 seconds.
    """
    found = []
    owner = folder.stat().st_uid if folder.exists() else None
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and ours(command) and process.uids().real == owner:
                process.send_signal(stop_signal)
                found.append(process)
    _, stubborn = psutil.wait_procs(found, timeout=5.0)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, immortal = psutil.wait_procs(stubborn, timeout=5.0)
    if immortal:
        raise ServerError(f"Process {immortal[0].pid} of an earlier run does not end: end it, then start again.")
    return bool(found)
