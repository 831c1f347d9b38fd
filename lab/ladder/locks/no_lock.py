"""`no-lock`: read the counter, subtract in memory, write it back, and let everybody do so at once."""

from __future__ import annotations

from lab.ladder.locks.rung import LockRung
from locking.lock import Capabilities


class NoLock(LockRung):
    """Flawed: whoever asks is let in.

    The schedule: A reads 10, B reads 10 and writes 9, A writes 9. Two buyers were told yes and one unit is gone.
    The next rung, `thread-lock`, keeps apart the threads of one process; A and B are processes.
    Fixed by a lock on the server that keeps the counter: `setnx`. Source: articles 000 and 001.
    """

    slug = "no-lock"
    title = "No lock"
    flaw = "Two read the same value, and the second to write undoes what the first has written."
    breaks = "conserved"
    fixed_by = "setnx"
    source = "000, 001"
    capabilities = Capabilities()

    def take(self, owner: str) -> bool:
        return True

    def free(self, owner: str) -> bool:
        return True
