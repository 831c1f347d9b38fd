"""Flawed way of selling: it reads the counter, subtracts in memory and writes the result, without any lock."""

from __future__ import annotations

from lab.ladder.locks.rung import LockRung
from locking.lock import Capabilities


class NoLock(LockRung):
    """Flawed: every client may enter at any time.

    The schedule that breaks it: client A reads 10. B reads 10 and writes 9. A writes 9. Two customers were told that
    they have bought, but only one unit is gone.

    Fixed by a lock on the server that keeps the counter: `setnx`. A `thread-lock` is not enough, because A and B are
    processes. Source: articles 000 and 001.
    """

    slug = "no-lock"
    title = "No lock"
    flaw = "Two clients read the same value, and the second write overwrites the first."
    breaks = "conserved"
    fixed_by = "setnx"
    source = "000, 001"
    capabilities = Capabilities()

    def take(self, owner: str) -> bool:
        return True

    def free(self, owner: str) -> bool:
        return True
