"""Flawed lock: it checks whether the key exists, and sets it if it does not."""

from __future__ import annotations

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class GetThenSet(LockRung):
    """Flawed: the check and the write are two commands, and another client can come between them.

    The schedule that breaks it: client A checks and finds no key. B checks, finds no key and sets it. A sets it too.
    Both hold the lock.

    Fixed by one command that checks and sets: `setnx`. Source: article 001, way one.
    """

    slug = "get-then-set"
    title = "GET, then SET"
    flaw = "Two clients check before either sets the key, and both find the lock free."
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
