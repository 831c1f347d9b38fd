"""`get-then-set`: look whether the key is there, and set it when it is not."""

from __future__ import annotations

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class GetThenSet(LockRung):
    """Flawed: to look and to take are two commands.

    The schedule: A looks and sees no key, B looks and sees no key, A sets it, B sets it. Both hold the lock.
    Fixed by one command that does both: `setnx`. Source: article 001, way one.
    """

    slug = "get-then-set"
    title = "GET, then SET"
    flaw = "Two look before either takes, and both find the lock free."
    breaks = "one holder"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "setnx"
    source = "001"
    capabilities = ON_A_SERVER

    def take(self, owner: str) -> bool:
        if self.client.get(self.key):
            return False
        self.client.set(self.key, "locked")
        return True

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
