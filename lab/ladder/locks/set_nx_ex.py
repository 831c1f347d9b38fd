"""`set-nx-ex`: one command takes the lock and limits it. Every holder writes the same value."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class SetNxEx(LockRung):
    """Flawed: the key says that somebody holds the lock, not who.

    A crash at any moment leaves a lock that ends. The schedule: A is done and about to send his DEL; his TTL passes and
    B takes the lock; A's DEL frees the lock of B, and C enters beside B. When B is done, he frees the lock of C, and so
    on down the line: one late holder, and from then on nobody's lock holds.
    Fixed by a value that names the owner: `get-compare-del`. Source: articles 000, 001 and 004.
    """

    slug = "set-nx-ex"
    title = "SET NX EX, one value for all"
    flaw = "A holder that comes late frees the lock of another."
    breaks = "one holder"
    broken_by = "late release"
    clients = 3
    survives = frozenset({"crash"})
    fixed_by = "get-compare-del"
    source = "000, 001, 004"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, "locked", nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
