"""The supervisor: a detached process that runs the servers in the background until it is stopped."""

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

from servers.cluster import Member, ports_file
from servers.errors import ServerError
from servers.folder import CHECKOUT, RunFolder
from servers.postgres import Postgres
from servers.servers import CLUSTERS, SHOPS, STATUS, Servers
from servers.status import Status
from servers.valkey import Valkey

log = logging.getLogger("servers")
READY = "ready"
ALREADY = "already"
CHECK_INTERVAL = 0.2  # seconds between two checks of the servers
FIRST_PAUSE = 1.0  # seconds from a restart to the next restart, doubled while the server keeps ending
LONGEST_PAUSE = 30.0  # seconds; a server that dies this long after its pause starts over with FIRST_PAUSE


def start(folder: RunFolder, *, runs: Sequence[str] = SHOPS) -> bool:
    """Start a supervisor and return once its servers are ready; return False if another process runs them already.

    Raises:
        ServerError: the servers do not start; the message has the supervisor's output.
    """
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "servers", str(folder.path), *runs],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = ""
        if supervisor.stdout is not None:
            with supervisor.stdout as pipe:
                output = pipe.read().strip()
    except BaseException:
        supervisor.terminate()
        raise
    outcome = output.rpartition("\n")[2]  # Python may print warnings first
    if outcome in (READY, ALREADY):
        return outcome == READY
    raise ServerError(output or f"The supervisor ended with status {supervisor.wait()} and without a message.")


def stop(folder: RunFolder, *, delete: bool = False) -> bool:
    """Stop the process that runs the servers, and end orphans. Return once all servers are gone.

    Args:
        delete: also remove the folder and its data.

    Returns:
        Whether there was anything to stop.

    Raises:
        ServerError: the servers do not stop, this is not a run folder of this user, or it cannot be removed.
    """
    if not os.path.lexists(folder.path):
        return False
    folder.create()
    ran = folder.ownership.stop_owner()
    if folder.ownership.take():
        try:
            ran |= Postgres(folder.postgres).end_orphans()
            ran |= Valkey(folder.valkey).end_orphans()
            for name, cluster in CLUSTERS.items():
                if ports_file(folder.path, name).exists():
                    ran |= cluster(folder).end_orphans()
        finally:
            folder.ownership.release()
    if delete:
        folder.delete()
    return ran


def status(folder: RunFolder, *, runs: Sequence[str] = SHOPS) -> list[Status]:
    """Return the present state of each server."""
    return [STATUS[name](folder) for name in runs]


def supervise(path: Path, runs: Sequence[str]) -> None:
    """Run the servers until SIGTERM or SIGINT, and restart a server that dies.

    Tell `start` the outcome: the last line of output is `READY` or `ALREADY`. After an error, the output is a message.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    with Servers(RunFolder(path), runs=runs) as servers:
        sys.stdout.write(READY if servers.owned else ALREADY)
        sys.stdout.flush()
        if not servers.owned:
            return
        _redirect_output(path / "supervisor.log")
        members = [member for cluster in servers.clusters for member in cluster.members]
        restarts = [Restarts(server) for server in (servers.postgres, servers.valkey, *members) if server is not None]
        while True:
            time.sleep(CHECK_INTERVAL)
            for each in restarts:
                each.restart_if_dead()


class Restarts:
    """Restarts one server whenever it has ended. The pause between two attempts grows while the restarts fail.

    Without the pause, a server that cannot start, for example on a full disk, would fill its log. Other servers are
    checked during the pause. A server that takes a long time to recover its data is alive, so it is not restarted.
    """

    def __init__(self, server: Postgres | Valkey | Member) -> None:
        self.server = server
        self.pause = 0.0
        """Seconds from the last attempt to the next attempt."""
        self.next = 0.0
        """Time of the next attempt, on the monotonic clock."""

    def restart_if_dead(self) -> None:
        """Start the server again if it has ended and the pause is over. An error is logged."""
        child, now = self.server.child, time.monotonic()
        if child.alive or now < self.next:
            return
        ran_well = now > self.next + LONGEST_PAUSE
        # Take the maximum, because the pause may still be 0: soon after boot the monotonic clock is low, and `ran_well`
        # is False at the first restart.
        self.pause = FIRST_PAUSE if ran_well else min(max(2 * self.pause, FIRST_PAUSE), LONGEST_PAUSE)
        self.next = now + self.pause
        log.warning(
            "%s ended with status %s; restarting it. If it ends again, the next attempt is in %g s at the earliest. "
            "Its messages are in %s.",
            *(child.name, child.returncode, self.pause, child.log),
        )
        try:
            self.server.launch()
        except (ServerError, OSError) as error:
            log.error("%s was not restarted: %s", child.name, error)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)  # a second signal must not interrupt the shutdown
    raise SystemExit(0)


def _redirect_output(path: Path) -> None:
    """Write further output to a log, and close the pipe that `start` reads, so that `start` returns."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(file, standard)
    os.close(file)
    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr, level=logging.INFO)
