"""Flawed lock: the holder may enter again, but its entries are not counted."""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace
from typing import Any

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class ReEntrantWithoutTheCount(LockRung):
    """Flawed: two entries of one holder share one key, and the first release deletes it.

    The owner is the thread, with random bits that distinguish it from threads of other processes. So the next call in
    the same thread finds itself as the owner. The schedule that breaks it: client A acquires the lock and calls a
    function that acquires and releases it too. A is still in its outer block, and B enters. A's lease still looks
    valid. A's own release finds nothing to delete, and the code ignores that reply.

    Fixed by a count, so that only the outermost release frees the lock: `re-entrant`. Source: article 002 (sections
    4.1.5 and 6.1).
    """

    slug = "re-entrant-without-the-count"
    title = "Re-entrant, without the count"
    flaw = "The inner release frees the lock while the outer block still needs it."
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
