"""A process that checks rungs. What needs Django is imported when Django is set up, and not before."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
from contextlib import ExitStack
from multiprocessing import parent_process
from threading import Thread
from typing import Any

from lab.claims.interrupts import insist

STOP_SECONDS = 3.0
"""Seconds in which such a process has to clear up when it is told to end, before it is killed."""

_stage: list[Any] = []
_told_to_end = False


def begin() -> None:
    """Set up this process."""
    import django

    django.setup()
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, _end)
    insist(signal.SIGTERM, SystemExit)
    Thread(target=_end_with_parent, name="ends with its parent", daemon=True).start()


def work(job: str, slug: str, **options: Any) -> dict[str, Any]:
    """Do `check`, `search`, `deep` or `control` of `lab.claims.verify` on a rung, on this process's stage.

    Returns:
        Its line. Where something is missing that the rung needs, that is what it says: other rungs do without.

    Raises:
        ServerError: there is no stage, or a server does not answer.
    """
    if _told_to_end:
        raise SystemExit
    from lab.claims import verify
    from lab.ladder.catalogue import LADDER
    from lab.sandbox import pool
    from lab.sandbox.restarting import sandbox_for
    from lab.sandbox.valkeys import Missing

    if not _stage:
        held = ExitStack()
        _stage.append(held.enter_context(pool.for_a_command()))
        atexit.register(held.close)
    try:
        with pool.plainly():
            # What is searched for is kept for the pages, where no server restarts.
            where = sandbox_for(LADDER[slug], _stage[0]) if job in ("check", "control") else _stage[0]
            line: dict[str, Any] = getattr(verify, job)(slug, where, **options)
    except Missing as missing:
        line = verify.unchecked(slug, str(missing))
    return line


def _end(number: int, frame: object) -> None:
    """Leave what is being done, so that all is cleared up. Whoever runs us takes that for an answer: see `work`."""
    global _told_to_end
    _told_to_end = True
    raise SystemExit


def _end_with_parent() -> None:
    """Whoever runs us may be killed; it gives us no more work then, and cannot tell us to end."""
    parent = parent_process()
    if parent is None:
        return
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)
