"""Flawed lock: waiters queue in a list, and the first one is next even if it has died."""

from __future__ import annotations

from dataclasses import replace

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung
from locking.lease import Lease
from locking.lock import wait_timeout

TAKE = """
-- KEYS: the lock, the queue. ARGV: the owner, the TTL in milliseconds. Returns 1 if it was granted, else 0.
if not redis.call('LPOS', KEYS[2], ARGV[1]) then
    redis.call('RPUSH', KEYS[2], ARGV[1])
end
if redis.call('LINDEX', KEYS[2], 0) ~= ARGV[1] or not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return 0
end
redis.call('LPOP', KEYS[2])
return 1
"""


class DeadHead(LockRung):
    """Flawed: a place in the queue never expires, so a waiter that has died keeps its place.

    While every process lives, the lock is fair: the first in the queue is next, and a waiter that gives up leaves the
    queue. The schedule that breaks it: client A holds the lock. B joins the queue and dies. A releases the lock. The
    lock is free, but C waits forever behind B, and so does every later client.

    Fixed by places that expire, so that waiters overtake a dead one: `fair`. Source: article 002, section 6.1.
    """

    slug = "dead-head"
    title = "A dead waiter at the head of the queue"
    flaw = "A waiter that dies stays first in the queue, and no client can enter any more."
    breaks = "progress"
    broken_by = "crash"
    clients = 3
    fixed_by = "fair"
    source = "002"
    capabilities = replace(WITH_A_TTL, fair=True)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`."""
        deadline = self._clock() + wait_timeout(blocking, timeout)
        owner = self.owner()
        lease = self._poll(owner, deadline)
        if lease is None:
            with self._errors_as_unavailable():
                self.client.lrem(self.line, 1, owner)
        return lease

    def take(self, owner: str) -> bool:
        return bool(self.client.eval(TAKE, 2, self.key, self.line, owner, self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))

    @property
    def line(self) -> str:
        """The key of the list of waiters. The list begins with the first waiter of the queue."""
        return f"{self.key}:line"
