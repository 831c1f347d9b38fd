"""`watch-set-too-late`: the call that sets the watch says that there is nothing to watch, and nobody reads that."""

from __future__ import annotations

import threading

from lab.ladder.locks.rung import Rung
from locking.zookeeper import ZooKeeperLock
from locking.zookeeper.session import ZooKeeperSession


class WatchSetTooLate(Rung, ZooKeeperLock):
    """Flawed: to look at the line and to watch the one before are two requests, and he may go in between.

    `exists` sets a watch on a node whether it is there or not, and says which. On one that is gone the watch waits for
    its return, and no node of a line ever returns. The schedule: A holds the lock, B looks and sees A before him; A
    releases; B sets his watch, and sleeps. The lock is free, B is the first in line, and nothing wakes him; behind him
    stands everybody else.
    Fixed by reading the answer, and looking again when it says that he is gone: `zookeeper`.
    Source: article 002, section 3.4, whose published listing does this.
    """

    slug = "watch-set-too-late"
    title = "The watch is set too late"
    flaw = "A waiter sleeps for ever when the one before goes right before it is watched."
    breaks = "progress"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "zookeeper"
    source = "002"

    def _sleep(self, session: ZooKeeperSession, before: str, deadline: float) -> None:
        path = f"{self._queue_path}/{before}"
        event = self._client.handler.event_object()
        with session.notifying(event, path):
            self._answer(self._client.exists_async(path, session.notify), deadline)
            event.wait(min(deadline - self._clock(), threading.TIMEOUT_MAX))
