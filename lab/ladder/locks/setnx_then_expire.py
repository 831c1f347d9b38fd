"""Flawed lock: one command acquires it, and a second one sets its TTL."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class SetnxThenExpire(LockRung):
    """Flawed: a crash between the two commands leaves a lock that never expires.

    If a holder dies at work, its lock expires. The schedule that breaks it: client A's SETNX is done, and its process
    dies before it sends PEXPIRE. The key has no TTL, as on `setnx`. Such a crash is too rare for a test to find, but
    common enough to happen.

    Fixed by one command that acquires and sets the TTL: `set-nx-ex`. Source: articles 000, 002 (section 5.1), 003 and
    004.
    """

    slug = "setnx-then-expire"
    title = "SETNX, then EXPIRE"
    flaw = "A crash between the two commands leaves a lock that never expires."
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
