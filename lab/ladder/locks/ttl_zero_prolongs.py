"""Flawed lock: a waiter that reads a TTL of 0 treats it as no TTL, and extends the lock."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class TtlZeroProlongs(LockRung):
    """Flawed: a TTL of 0 does not mean that there is none. It means that less than half a second is left.

    The reply for a key without a TTL is -1, and this rung also sets a TTL in that case. So a lock whose holder died
    between SETNX and PEXPIRE gets one. The schedule that breaks it: client A dies with the lock. B polls. In the last
    half second the server replies 0, and B extends the lock of the dead holder by a whole TTL. This repeats each time
    that the lock is about to expire, so B keeps itself out.

    Fixed by milliseconds, and by a test for -1 alone that the server makes: `ttl-healed-in-one-script`. Source: article
    003, whose listing tests `not ttl`.
    """

    slug = "ttl-zero-prolongs"
    title = "A TTL of 0 is prolonged"
    flaw = "Waiters that poll extend the lock of a dead holder just before it expires, so it never does."
    breaks = "progress"
    broken_by = "crash"
    fixed_by = "ttl-healed-in-one-script"
    source = "003"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        if not self.client.setnx(self.key, "locked"):
            if self.client.ttl(self.key) <= 0:
                self.client.pexpire(self.key, self.milliseconds)
            return False
        self.client.pexpire(self.key, self.milliseconds)
        return True

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
