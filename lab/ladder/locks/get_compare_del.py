"""`get-compare-del`: the key names its owner, who looks before he deletes it."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class GetCompareDel(LockRung):
    """Flawed: to look and to delete are two commands.

    A late holder sees that the lock is another's and leaves it alone. The schedule: A looks and the lock is still his;
    his TTL passes and B takes the lock; A's DEL frees the lock of B, and C enters beside B.
    Fixed by a release that happens only if nothing has changed since the look: `watch-release`.
    Source: articles 001 (way three), 002 (section 5.1) and 004.
    """

    slug = "get-compare-del"
    title = "Owner value: GET, compare, DEL"
    flaw = "The lock expires between the look and the DEL, which frees the lock of another."
    breaks = "one holder"
    broken_by = "late release"
    clients = 3
    survives = frozenset({"crash"})
    fixed_by = "watch-release"
    source = "001, 002, 004"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return self.client.get(self.key) == owner.encode() and bool(self.client.delete(self.key))
