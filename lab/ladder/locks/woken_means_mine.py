"""Flawed lock: a woken waiter takes the lock without reading the queue again."""

from __future__ import annotations

from lab.ladder.locks.rung import Rung
from locking.lease import Lease
from locking.zookeeper import ZooKeeperLock
from locking.zookeeper.session import ZooKeeperSession


class WokenMeansMine(Rung, ZooKeeperLock):
    """Flawed: a waiter is woken when the client in front of it leaves, even if that client never held the lock.

    The code is that of `ZooKeeperLock` with one difference: a waiter that is woken does not read the queue again. The
    schedule that breaks it: client A holds the lock, B waits behind A, and C waits behind B. B dies, and its node is
    deleted with its session. C is woken and enters beside A. As long as no waiter dies or gives up, the code is right,
    so a test with two clients passes.

    Fixed by reading the queue again, and then watching the node that is now next in front: `zookeeper`. Source: article
    002, section 3.4, whose published listing has this flaw.
    """

    slug = "woken-means-mine"
    title = "Woken means mine"
    flaw = "A waiter enters when the waiter before it dies."
    breaks = "one holder"
    broken_by = "crash"
    clients = 3
    survives = frozenset({"expiry"})
    fixed_by = "zookeeper"
    source = "002"

    def _queue(self, session: ZooKeeperSession, token: str, deadline: float) -> Lease | None:
        number = session.number
        node, fence = self._enter(token, deadline)
        line = self._look(deadline)
        place = line.index(node)
        if place > 0:
            self._sleep(session, line[place - 1], deadline)
        started = self._clock()
        if place > 0 and started >= deadline:
            return None
        return self._granted(session, number, node, fence, started)
