"""`thread-lock`: the lock of the language, one a name in the memory of the process."""

from __future__ import annotations

import threading
from typing import Any

from lab.ladder.locks.rung import LockRung
from locking.lock import Capabilities

_mutexes: dict[str, Any] = {}


class ThreadLock(LockRung):
    """Flawed: another process has another memory, and so another lock.

    Between the threads of one process it is right. The schedule: the web server runs two worker processes; A holds the
    lock of his, B asks for the lock of hers and gets it. An RLock lets its owner, the thread, in again, so it does
    not tell two asyncio tasks apart, and only the thread that took it can free it.
    Fixed by `process-lock`. Source: articles 000, 001 and 002 (section 2).
    """

    slug = "thread-lock"
    title = "Thread lock"
    flaw = "Two processes have two locks of the same name."
    breaks = "one holder"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "process-lock"
    source = "000, 001, 002"
    capabilities = Capabilities(across_processes=True, reentrant=True)

    def take(self, owner: str) -> bool:
        return bool(self._mutex.acquire(blocking=False))

    def free(self, owner: str) -> bool:
        self._mutex.release()
        return True

    @property
    def _mutex(self) -> Any:
        return _mutexes.setdefault(self.name, threading.RLock())
