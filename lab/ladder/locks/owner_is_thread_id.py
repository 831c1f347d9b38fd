"""Flawed lock: the owner is the id of the thread."""

from __future__ import annotations

import threading

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class OwnerIsThreadId(LockRung):
    """Flawed: a thread id is unique only within its process.

    The release compares and deletes in one step, but the id that it compares does not identify the owner. The schedule
    that breaks it: client A is about to release. Its TTL runs out, and B acquires the lock from another process, in a
    thread with the same id. A's release finds its own id and deletes B's key, and C enters beside B. This is not rare:
    the main threads of workers that are forked from one parent all have the same id.

    Fixed by random bits as the owner: `lua-release`. Other facts about a client do not identify it either: see
    `owner-is-ip-pid-thread-time`. Source: article 002, section 5.
    """

    slug = "owner-is-thread-id"
    title = "The owner is the thread id"
    flaw = "Threads of different processes have the same id, and one releases the other's lock."
    breaks = "one holder"
    broken_by = "late release"
    clients = 3
    survives = frozenset({"crash"})
    fixed_by = "lua-release"
    source = "002"
    capabilities = WITH_A_TTL

    def owner(self) -> str:
        return str(threading.get_ident())

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))
