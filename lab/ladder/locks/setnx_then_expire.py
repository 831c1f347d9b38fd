"""`setnx-then-expire`: take the lock, then give it a TTL."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class SetnxThenExpire(LockRung):
    """Flawed: to take and to limit are two commands.

    The lock of a holder who dies at work ends with its TTL. The schedule: A's SETNX is done and his process dies
    before the EXPIRE is sent. The key has no TTL, as one rung below, only more rarely: often enough to happen, too
    rarely to be tested.
    Fixed by one command for both, `set-nx-ex`; the next rungs are what people try first.
    Source: articles 000, 002 (section 5.1), 003 and 004.
    """

    slug = "setnx-then-expire"
    title = "SETNX, then EXPIRE"
    flaw = "A crash between the two commands leaves a lock that never ends."
    breaks = "progress"
    broken_by = "crash"
    fixed_by = "set-nx-ex"
    source = "000, 002, 003, 004"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        if not self.client.setnx(self.key, "locked"):
            return False
        self.client.pexpire(self.key, self.milliseconds)
        return True

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
