"""Flawed lock: a waiter that sets a watch ignores the reply that the node is already gone."""

from __future__ import annotations

import threading

from lab.ladder.locks.rung import Rung
from locking.zookeeper import ZooKeeperLock
from locking.zookeeper.session import ZooKeeperSession


class WatchSetTooLate(Rung, ZooKeeperLock):
    """Flawed: a client reads the queue and then watches the node in front. The node may be deleted in between.

    `exists` sets a watch whether the node is there or not, and its reply says which. The watch on a deleted node waits
    until the node comes back, but a node of a queue never does. The schedule that breaks it: client A holds the lock,
    and B reads the queue and sees A in front. A releases. B sets its watch and sleeps. The lock is free and B is first
    in the queue, but nothing wakes B, and every other client waits behind B.

    Fixed by reading the reply, and reading the queue again when the node is gone: `zookeeper`. Source: article 002,
    section 3.4, whose published listing has this flaw.
    """

    slug = "watch-set-too-late"
    title = "The watch is set too late"
    flaw = "A waiter sleeps forever when the node before it is deleted just before the watch is set."
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
