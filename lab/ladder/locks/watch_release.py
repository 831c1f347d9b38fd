"""`watch-release`: the owner looks, and deletes only if nothing has changed since."""

from __future__ import annotations

from redis import WatchError

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class WatchRelease(LockRung):
    """Flawed, but no longer in its release: nobody frees the lock of another.

    WATCH makes the server refuse the transaction when the key was touched in between, by a client or by its TTL; then
    it is looked at again. What is left is the TTL itself. The schedule: A takes the lock and works for longer than the
    TTL; B takes it too; both are inside.
    Fixed by a watchdog that extends it: `renewal`. Source: article 003.
    """

    slug = "watch-release"
    title = "Owner value: WATCH, MULTI"
    flaw = "The work takes longer than the TTL, and two are inside."
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
