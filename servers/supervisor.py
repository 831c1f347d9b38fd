"""The servers in the background: a detached process keeps them until it is told to stop."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from servers.errors import ServerError
from servers.folder import CHECKOUT, RunFolder
from servers.postgres import Postgres
from servers.servers import STATUS, Servers
from servers.status import Status
from servers.valkey import Valkey

log = logging.getLogger("servers")
READY = "ready"
ALREADY = "already"


def start(folder: RunFolder, *, runs: Sequence[str] = tuple(STATUS)) -> bool:
    """Start a keeper and return once its servers answer; False when a live process ran them already.

    Raises:
        ServerError: they do not start; with what the keeper said.
    """
    keeper = subprocess.Popen(
        [sys.executable, "-m", "servers", str(folder.path), *runs],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = ""
        if keeper.stdout is not None:
            with keeper.stdout as pipe:
                said = pipe.read().strip()
    except BaseException:
        keeper.terminate()
        raise
    verdict = said.rpartition("\n")[2]  # Python's own warnings may come before it
    if verdict in (READY, ALREADY):
        return verdict == READY
    raise ServerError(said or f"The keeper of the servers ended with status {keeper.wait()} and said nothing.")


def stop(folder: RunFolder, *, delete: bool = False) -> bool:
    """Stop the process that runs the servers, wait until they are gone, and `delete` the folder and its data.

    Returns:
        Whether there was anything to stop.

    Raises:
        ServerError: they do not stop, or this is no folder of ours.
    """
    if not os.path.lexists(folder.path):
        return False
    folder.create()
    ran = folder.claim.stop_owner()
    if folder.claim.take():
        try:
            ran |= Postgres(folder.postgres).end_orphans()
            ran |= Valkey(folder.valkey).end_orphans()
        finally:
            folder.claim.release()
    if delete:
        folder.delete()
    return ran


def status(folder: RunFolder, *, runs: Sequence[str] = tuple(STATUS)) -> list[Status]:
    """Ask the servers how they are."""
    return [STATUS[name](folder) for name in runs]


def keep(path: Path, runs: Sequence[str]) -> None:
    """Be the keeper: run the servers until SIGTERM or SIGINT, and start again what dies.

    The first line that it writes is for `start`: that all answer, that somebody else runs them, or what is wrong.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    with Servers(RunFolder(path), runs=runs) as servers:
        sys.stdout.write(READY if servers.owned else ALREADY)
        sys.stdout.flush()
        if not servers.owned:
            return
        _write_to(path / "keeper.log")
        while True:
            time.sleep(0.2)
            for server in (servers.postgres, servers.valkey):
                if server is not None and not server.child.alive:
                    log.warning(
                        "%s ended with status %s: starting it again", server.child.name, server.child.returncode
                    )
                    server.start()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)  # a second one must not interrupt the stopping
    raise SystemExit(0)


def _write_to(path: Path) -> None:
    """Let the one who started us go on, and write what is left to say to a log."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(file, standard)
    os.close(file)
    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr, level=logging.INFO)
