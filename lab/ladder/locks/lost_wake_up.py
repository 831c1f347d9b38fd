"""Flawed lock: a waiter sleeps until a release is published, and it misses an earlier message."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung
from locking.lease import Lease
from locking.lock import wait_timeout

RELEASE = """
-- KEYS: the lock. ARGV: the owner. Publishes the release. Returns 1 if the lock was the owner's, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
redis.call('PUBLISH', KEYS[1], 'released')
return redis.call('DEL', KEYS[1])
"""


class LostWakeUp(LockRung):
    """Flawed: a refused waiter subscribes in a second command, and a message that is published in between is lost.

    A waiter does not poll a hundred times per second: the release publishes a message that wakes it. The schedule that
    breaks it: client A holds the lock, and B is refused. A releases the lock and publishes the message. Only then does
    B subscribe. B waits forever for a message that was already sent, although the lock is free.

    A second schedule also breaks it: A dies and publishes nothing. The TTL frees the lock, but no message wakes B.

    Fixed by a script that refuses the waiter and adds it to a list in one step, and by a new attempt when the TTL of
    the holder is over: `woken`. To subscribe first and ask afterwards would repair the first schedule only. Source:
    article 002 (sections 4.1.3 and 4.1.4).
    """

    slug = "lost-wake-up"
    title = "Lost wake-up"
    flaw = "A release before the waiter subscribes, or one that never comes, leaves the waiter asleep forever."
    breaks = "progress"
    fixed_by = "woken"
    source = "002"
    capabilities = WITH_A_TTL

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`."""
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
        """Sleep until a release is published. Return whether that happened before `deadline`."""
        if self._clock() >= deadline:
            return False
        with self._errors_as_unavailable(), self.client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(self.key)
            while (left := deadline - self._clock()) > 0:
                if subscription.get_message():
                    return True
                self._nap(left)  # The next check reads messages that have arrived here. It sends the server nothing.
        return False
