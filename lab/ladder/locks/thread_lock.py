"""Flawed lock: a lock of Python's `threading`, one object per name in the memory of the process."""

from __future__ import annotations

import threading
from typing import Any

from lab.ladder.locks.rung import LockRung
from locking.lock import Capabilities

_mutexes: dict[str, Any] = {}


class ThreadLock(LockRung):
    """Flawed: another process has its own memory, and therefore another lock.

    Between the threads of one process it is right. The schedule that breaks it: the web server runs two worker
    processes. Client A holds the lock of its process. B asks for the lock of the other process and gets it.

    An RLock belongs to a thread. The thread may enter again, so two asyncio tasks on one thread do not exclude each
    other. No other thread can release the lock.

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
