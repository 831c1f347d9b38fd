"""`owner-is-thread-id`: the owner is the number of the thread."""

from __future__ import annotations

import threading

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class OwnerIsThreadId(LockRung):
    """Flawed: a thread's number means something in its own process only.

    The release compares and deletes in one step; what it compares is no owner. The schedule: A is done and about to
    release; his TTL passes and B, on another machine, takes the lock in a thread of the same number; A's release finds
    its own number there and frees the lock of B, and C enters beside B. That is no rare chance: workers forked from
    one parent all have its number in their main thread.
    Fixed by random bits, which repeat nowhere: `lua-release`. What else is known of a client, as on the next rung, does
    not make an owner either. Source: article 002, section 5.
    """

    slug = "owner-is-thread-id"
    title = "The owner is the thread id"
    flaw = "Threads of different processes have the same number, and one frees the other's lock."
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
