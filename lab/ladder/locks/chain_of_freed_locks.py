"""`chain-of-freed-locks`: the lock of `set-nx-ex` while customers keep coming."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class ChainOfFreedLocks(LockRung):
    """Flawed: one late release makes the next release delete another client's lock too, and so on.

    On `set-nx-ex` A is late, and another client enters beside B. It does not end there. The schedule that breaks it: A
    is late, and its DEL deletes B's key. D enters beside B. B is in time, but the key is D's by now, so B's DEL deletes
    D's key. C enters beside D, and D's DEL will delete C's key. Nobody but A was late. The chain ends when no client
    waits.

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
