"""Flawed lock: one command acquires it and sets its TTL, but every holder writes the same value."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class SetNxEx(LockRung):
    """Flawed: the key says that a client holds the lock, but not which one.

    A crash at any moment leaves a lock that expires. The schedule that breaks it: client A has finished and is about to
    send DEL. Its TTL runs out, and B acquires the lock. A's DEL deletes B's key, and C enters beside B. When B
    finishes, its DEL deletes C's key, and so on.

    Fixed by a value that names the owner: `get-compare-del`. Source: articles 000, 001 and 004.
    """

    slug = "set-nx-ex"
    title = "SET NX EX, one value for all"
    flaw = "A holder that is late releases the lock of another client."
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
