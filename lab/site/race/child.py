"""The child process of a race: `manage.py rush` on servers of its own.

The child has its own run folder and none of the shop's settings, so it cannot touch the shop. It runs at low priority,
so the shop's work goes first. It ends when its standard input is closed, so it cannot outlive the web process that
started it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from queue import Empty, Queue

from django.conf import settings

from lab.ladder.stock import RUNGS
from lab.sandbox import isolation
from lab.site.race.state import Race
from locking import Lease

logger = logging.getLogger(__name__)

FOLDER = "race"
BURST_SECONDS = 15
"""Seconds after which a racer gets no more customers. Customers who were told to try again then give up."""
STOP_SECONDS = 15
"""Seconds for which a child may stop its servers before it is killed."""
HEARTBEAT_SECONDS = 1.0
"""Maximum number of seconds between two signs of life, even if the race reports nothing."""


def command(race: Race) -> list[str]:
    """Return the command line of the child."""
    kinds = {racer.name: "--rung" if racer.name in RUNGS else "--strategy" for racer in race.racers}
    return [
        *(sys.executable, "manage.py", "rush", "--json-lines"),
        *(part for name, kind in kinds.items() for part in (kind, name)),
        *("--clients", str(race.clients), "--stock", str(race.stock), "--seconds", str(BURST_SECONDS)),
    ]


def run_child(race: Race, lease: Lease) -> None:
    """Run a race to its end. Save its state after each line of the child's output.

    Args:
        race: the race, whose state is updated.
        lease: the lease of the lock that allows one race at a time. The child is stopped when the lease is lost.
    """
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            command(race),
            cwd=settings.BASE_DIR,
            env=isolation.environment(isolation.folder(FOLDER)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                os.setpriority(os.PRIO_PROCESS, child.pid, 10)
                _follow(race, child, lease)
            finally:
                _stop(child)
        if not all(racer.ended for racer in race.racers):
            stderr.seek(0)
            errors = stderr.read()[-2000:].decode(errors="replace")
            logger.error("The race %s ended with status %s. %s", race.id, child.returncode, errors)
    isolation.remove(isolation.folder(FOLDER))


def _follow(race: Race, child: subprocess.Popen[str], lease: Lease) -> None:
    """Update the race from the child's output until the child ends, the time limit is reached, or the lease is lost."""
    lines: Queue[str | None] = Queue()
    threading.Thread(target=_read, args=(child, lines), name="race reader", daemon=True).start()
    started = time.monotonic()
    while not lease.lost:
        if time.monotonic() - started > race.limit:
            race.timed_out = True
            break
        try:
            line = lines.get(timeout=HEARTBEAT_SECONDS)
        except Empty:
            line = ""
        if line is None:
            break
        if line:
            race.update(json.loads(line))
        race.save()


def _read(child: subprocess.Popen[str], lines: Queue[str | None]) -> None:
    for line in child.stdout or ():
        lines.put(line)
    lines.put(None)


def _stop(child: subprocess.Popen[str]) -> None:
    """Ask the child to stop its servers and end. If it does not, kill its process group."""
    with suppress(OSError):
        if child.stdin:
            child.stdin.close()
    try:
        child.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # The child was not reaped yet, so its process id cannot belong to another process. Its servers are in other
        # process groups, but the servers end when the child ends.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
