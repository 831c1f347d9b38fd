"""Flawed lock: a semaphore of the operating system that the processes of one program share."""

from __future__ import annotations

import multiprocessing
from typing import Any

from lab.ladder.locks.rung import LockRung
from locking.lock import Capabilities

_mutexes: dict[str, Any] = {}


class ProcessLock(LockRung):
    """Flawed: only processes that inherited the semaphore from the same parent share it.

    The process that first uses a name creates the semaphore. Only workers that it forks afterwards share it. The
    schedule that breaks it: the same program runs on two machines, or twice on one. Client A holds the lock of the
    first program. C asks for the lock of the second program and gets it.

    A worker that dies while it holds the lock never releases it.

    Fixed by a lock on a server that all machines use. The first attempt is `get-then-set`. Source: article 001.
    """

    slug = "process-lock"
    title = "Process lock"
    flaw = "Two machines, or two programs on one machine, have two locks of the same name."
    breaks = "one holder"
    clients = 3
    survives = frozenset({"expiry", "pause"})
    fixed_by = "get-then-set"
    source = "001"
    capabilities = Capabilities(across_processes=True, across_machines=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Create the semaphore here, not at the first acquire: a worker that is forked in between must inherit it.
        self._mutex = _mutexes.setdefault(self.name, multiprocessing.get_context("fork").Lock())

    def take(self, owner: str) -> bool:
        return bool(self._mutex.acquire(block=False))

    def free(self, owner: str) -> bool:
        self._mutex.release()
        return True
