"""Flawed lock: a waiter that finds a lock without a TTL should set one, but does not."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class TtlHealedByWaiters(LockRung):
    """Flawed: the waiter tests `not ttl`, which is false without a TTL (-1) and true for a TTL that is almost over (0).

    For a key without a TTL the server replies -1, which is true in Python, so the waiter sets no TTL. The schedule that
    breaks it: client A dies between SETNX and PEXPIRE, and B waits forever.

    A second schedule also breaks it. The TTL command rounds to whole seconds, so it returns 0 in the last half second
    before a lock expires. A dies at work. B polls and extends A's lock each time it is about to expire, so B waits
    forever too. The rung is worse than `setnx-then-expire`, which it should repair.

    Fixed by a test for -1 that the server makes: `ttl-healed-in-one-script`. Source: article 003.
    """

    slug = "ttl-healed-by-waiters"
    title = "TTL healed by waiters"
    flaw = "It heals no lock without a TTL, and it keeps the lock of a dead holder alive."
    breaks = "progress"
    broken_by = "crash"
    fixed_by = "ttl-healed-in-one-script"
    source = "003"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        if not self.client.setnx(self.key, "locked"):
            if not self.client.ttl(self.key):
                self.client.pexpire(self.key, self.milliseconds)
            return False
        self.client.pexpire(self.key, self.milliseconds)
        return True

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
