"""`process-lock`: a semaphore of the operating system, which the processes of one family share."""

from __future__ import annotations

import multiprocessing
from typing import Any

from lab.ladder.locks.rung import LockRung
from locking.lock import Capabilities

_mutexes: dict[str, Any] = {}


class ProcessLock(LockRung):
    """Flawed: only processes that inherited the semaphore from a common parent share it.

    It belongs to the process that names it first and to the workers that it forks from then on. The schedule: the same
    program runs on two machines, or was started twice on one; A holds the lock of one family, B asks for that of the
    other and gets it. And a worker that dies with the lock takes it along for ever.
    Fixed by a lock on a server that all machines ask: `get-then-set` is the first try. Source: article 001.
    """

    slug = "process-lock"
    title = "Process lock"
    flaw = "Two machines, or two programs on one, have two locks of the same name."
    breaks = "one holder"
    clients = 3
    survives = frozenset({"expiry", "pause"})
    fixed_by = "get-then-set"
    source = "001"
    capabilities = Capabilities(across_processes=True, across_machines=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Made here and not when it is first taken: who is forked in between has to inherit it.
        self._mutex = _mutexes.setdefault(self.name, multiprocessing.get_context("fork").Lock())

    def take(self, owner: str) -> bool:
        return bool(self._mutex.acquire(block=False))

    def free(self, owner: str) -> bool:
        self._mutex.release()
        return True
