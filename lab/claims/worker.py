"""A process that checks locks and ways of selling. It sets up Django before it imports what needs Django."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import parent_process
from threading import Thread
from typing import Any, Literal

from lab.claims.interrupts import insist

JobName = Literal["check", "remeasure", "search", "deep", "stress"]
"""A job on one rung: the name of a function in `lab.claims.verify`, or `stress` for the stress run."""

STOP_SECONDS = 3.0
"""Seconds for which a process may clean up after it is told to end. Then it is killed."""

_sandbox: list[Any] = []
_told_to_end = False


def begin() -> None:
    """Set up this process: Django, logging, signals, and a thread that ends the process when its parent ends."""
    import django

    django.setup()
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, _end)
    insist(signal.SIGTERM, SystemExit)
    Thread(target=_end_with_parent, name="ends with its parent", daemon=True).start()


def work(job: JobName, slug: str, **options: Any) -> dict[str, Any]:
    """Do a job on a rung, in the sandbox of this process.

    Returns:
        The result line of the rung. If a server or library is missing, the line says so: other rungs may not need it.

    Raises:
        ServerError: there is no sandbox, or a server does not answer.
    """
    if _told_to_end:
        raise SystemExit
    from lab.claims import stress, verify
    from lab.claims.finding import restarting_sandbox
    from lab.ladder.catalogue import LADDER
    from lab.sandbox import pool
    from lab.sandbox.databases import server_errors
    from lab.sandbox.fleet import Missing

    if not _sandbox:
        held = ExitStack()
        _sandbox.append(held.enter_context(pool.for_a_command()))
        atexit.register(held.close)
    jobs: dict[JobName, Callable[..., dict[str, Any]]] = {
        "check": verify.check,
        "remeasure": verify.remeasure,
        "search": verify.search,
        "deep": verify.deep,
        "stress": stress.stress,
    }
    sandbox = _sandbox[0]
    try:
        with server_errors():
            if job in ("check", "remeasure", "stress"):
                # Not for a search: pages replay the witness that a search finds, and the Redis of the pages cannot
                # restart.
                sandbox = restarting_sandbox(LADDER[slug], sandbox)
            return jobs[job](slug, sandbox, **options)
    except Missing as missing:
        return verify.unchecked(slug, str(missing))


def _end(number: int, frame: object) -> None:
    """End the current job by an exception, so that its cleanup runs. The exception becomes the job's result."""
    global _told_to_end
    _told_to_end = True
    raise SystemExit


def _end_with_parent() -> None:
    """Wait until the parent process ends, then end this process. A parent that was killed cannot end its children."""
    parent = parent_process()
    if parent is None:
        return
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)
