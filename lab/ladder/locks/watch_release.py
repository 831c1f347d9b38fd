"""Flawed lock: the server deletes the key only if it has not changed since the owner's check."""

from __future__ import annotations

from redis import WatchError

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class WatchRelease(LockRung):
    """Flawed: the release is right, but the TTL can be shorter than the work.

    WATCH makes the server refuse the transaction if a client has changed the key or the key has expired. The release
    then checks again, so no client releases the lock of another. The schedule that breaks it: client A acquires the
    lock, and its work takes longer than the TTL. B acquires the lock too. Both are in the critical section.

    Fixed by a watchdog that extends the lock: `renewal`. Source: article 003.
    """

    slug = "watch-release"
    title = "Owner value: WATCH, MULTI"
    flaw = "The work takes longer than the TTL, and two clients are in the critical section."
    breaks = "one holder"
    broken_by = "expiry"
    survives = frozenset({"late release", "crash"})
    fixed_by = "renewal"
    source = "003"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        with self.client.pipeline() as transaction:
            while True:
                transaction.watch(self.key)
                if transaction.get(self.key) != owner.encode():
                    return False
                transaction.multi()
                transaction.delete(self.key)
                try:
                    return bool(transaction.execute()[0])
                except WatchError:
                    continue
