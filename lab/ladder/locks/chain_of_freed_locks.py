"""Flawed lock: the lock of `set-nx-ex`, with more clients that wait for it."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class ChainOfFreedLocks(LockRung):
    """Flawed: one late release deletes the key of another client, whose release then deletes the key of a third.

    The schedule that breaks it: client A is late, and its DEL deletes B's key, as on `set-nx-ex`. D enters beside B. B
    is in time, but the key now belongs to D, so B's DEL deletes D's key. C enters beside D, and D's DEL will delete C's
    key. Only A was late. The chain ends when no client waits.

    Fixed by a value that names the owner: `get-compare-del`. Source: articles 000 and 001.
    """

    slug = "chain-of-freed-locks"
    title = "The chain of freed locks"
    flaw = "After one late release, each holder releases the lock of the next, although none of them is late."
    breaks = "one holder"
    broken_by = "late release"
    clients = 4
    preemptions = 3
    survives = frozenset({"crash"})
    fixed_by = "get-compare-del"
    source = "000, 001"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, "locked", nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
