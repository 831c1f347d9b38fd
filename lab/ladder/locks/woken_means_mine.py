"""`woken-means-mine`: the one before me is gone, so it must be my turn."""

from __future__ import annotations

from lab.ladder.locks.rung import Rung
from locking.lease import Lease
from locking.zookeeper import ZooKeeperLock
from locking.zookeeper.session import ZooKeeperSession


class WokenMeansMine(Rung, ZooKeeperLock):
    """Flawed: the one before may have been waiting too, and gone away without ever holding the lock.

    All is that of `ZooKeeperLock` but for one thing: who is woken does not look at the line again. The schedule: A
    holds the lock, B waits behind him, C waits behind B; B dies, and his node goes with his session. C is woken, and
    enters beside A. While nobody in line dies or gives up, it is right, so a test with two contenders passes.
    Fixed by looking again, and sleeping again behind whoever is before one then: `zookeeper`.
    Source: article 002, section 3.4, whose published listing does this.
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
