"""Flawed lock: the key names its owner, and the owner checks it before it deletes the key."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class GetCompareDel(LockRung):
    """Flawed: the release checks the owner in one command and deletes the key in another.

    A late holder usually sees that the lock belongs to another client, and does not delete it. The schedule that breaks
    it: client A checks the key, which still names A. The TTL runs out, and B acquires the lock. A's DEL deletes B's
    key, and C enters beside B.

    Fixed by a release that the server carries out only if nothing has changed since the check: `watch-release`. Source:
    articles 001 (way three), 002 (section 5.1) and 004.
    """

    slug = "get-compare-del"
    title = "Owner value: GET, compare, DEL"
    flaw = "The lock expires between the check and the DEL, which deletes the lock of another client."
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
