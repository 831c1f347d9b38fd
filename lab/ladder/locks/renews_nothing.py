"""Flawed lock: to renew, the watchdog acquires again. The server refuses because the key exists."""

from __future__ import annotations

from lab.ladder.locks.rung import COMPARE_AND_DELETE, RenewedRung


class RenewsNothing(RenewedRung):
    """Flawed: the watchdog acquires the lock again instead of extending it, and ignores the reply.

    The watchdog runs, sees that its client holds the lock, and reports a renewal. The schedule that breaks it: client A
    acquires the lock and works. The watchdog's SET NX is refused each time, because the key exists. The TTL runs out,
    and B acquires the lock. Both are in the critical section, and A's lease still looks valid.

    Fixed by a script that compares and extends: `renewal`. Source: article 000. Its listing still has this flaw after
    the mistake of `watchdog-compares-a-constant` is repaired.
    """

    slug = "renews-nothing"
    title = "Renewal that renews nothing"
    flaw = "The lock expires while its holder works, and the holder believes that it was renewed."
    breaks = "one holder"
    broken_by = "expiry"
    survives = frozenset({"late release", "crash"})
    fixed_by = "renewal"
    source = "000"

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))

    def prolong(self, owner: str) -> bool:
        if self.client.get(self.key) != owner.encode():
            return False
        self.take(owner)
        return True
