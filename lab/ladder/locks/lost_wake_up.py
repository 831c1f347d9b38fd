"""`lost-wake-up`: a waiter sleeps until the release is published, and nothing else wakes him."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung
from locking.lease import Lease
from locking.lock import wait_timeout

RELEASE = """
-- KEYS: the lock. ARGV: the owner. Publishes the release, and returns 1 when the lock was the owner's, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
redis.call('PUBLISH', KEYS[1], 'released')
return redis.call('DEL', KEYS[1])
"""


class LostWakeUp(LockRung):
    """Flawed: to be refused and to listen are two commands, and what is published in between nobody has heard.

    Waiters no longer ask a hundred times a second: a release tells them. The schedule: A holds the lock and B is
    refused; A releases and publishes it; only then does B subscribe. He waits for a message that has been sent, beside
    a lock that is free, and for ever. A second one ends the same way: A dies, so he publishes nothing; his TTL frees
    the lock, and nobody tells B.
    Fixed by noting the waiter in the same step that refuses him, and by looking again when the TTL of the grant is
    over: `woken`. To subscribe first and ask afterwards mends the first schedule and not the second.
    Source: article 002 (sections 4.1.3 and 4.1.4).
    """

    slug = "lost-wake-up"
    title = "Lost wake-up"
    flaw = "A release before the waiter listens, or one that never comes, leaves him asleep for ever."
    breaks = "progress"
    fixed_by = "woken"
    source = "002"
    capabilities = WITH_A_TTL

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`."""
        deadline = self._clock() + wait_timeout(blocking, timeout)
        lease = super().acquire(blocking=False)
        while lease is None and self._published(deadline):
            lease = super().acquire(blocking=False)
        return lease

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(RELEASE, 1, self.key, owner))

    def _published(self, deadline: float) -> bool:
        """Sleep until a release is published, and return whether one was before `deadline`."""
        if self._clock() >= deadline:
            return False
        with self._answered(), self.client.pubsub(ignore_subscribe_messages=True) as ears:
            ears.subscribe(self.key)
            while (left := deadline - self._clock()) > 0:
                if ears.get_message():
                    return True
                self._nap(left)  # then it looks at what has come to this machine, and asks the server nothing
        return False
