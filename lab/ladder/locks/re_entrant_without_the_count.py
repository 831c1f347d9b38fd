"""`re-entrant-without-the-count`: who holds the lock is let in again, and nobody counts how often."""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace
from typing import Any

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class ReEntrantWithoutTheCount(LockRung):
    """Flawed: two entries are one key, and the first release deletes it.

    The owner is the thread, told from those of other processes by random bits, so it is found again by the next call
    of the same thread. The schedule: A takes the lock and calls a function that takes it too and releases it on its
    way out; A is still inside, and B enters beside him. A's lease says that all is well. His release finds nothing to
    free, and nobody reads that.
    Fixed by a count, so that only the outermost release frees the lock: `re-entrant`. Source: article 002 (sections
    4.1.5 and 6.1).
    """

    slug = "re-entrant-without-the-count"
    title = "Re-entrant, without the count"
    flaw = "The inner release frees the lock under the outer block."
    breaks = "one holder"
    survives = frozenset({"crash"})
    fixed_by = "re-entrant"
    source = "002"
    capabilities = replace(WITH_A_TTL, reentrant=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._place = secrets.token_hex(8)

    def owner(self) -> str:
        return f"{self._place}-{threading.get_ident()}"

    def take(self, owner: str) -> bool:
        if self.client.get(self.key) == owner.encode():
            return True
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))
