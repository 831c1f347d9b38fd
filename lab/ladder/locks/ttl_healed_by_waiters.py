"""`ttl-healed-by-waiters`: a waiter that finds a lock without a TTL gives it one, or so it is meant."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class TtlHealedByWaiters(LockRung):
    """Flawed: `not ttl` is asked of a number that is never nothing when it should be, and is 0 when it should not be.

    For a key without a TTL the server answers -1, which is true in Python: it never heals. And TTL is rounded to whole
    seconds, so it says 0 in the last half second of a lock that is about to end well by itself. First schedule: A dies
    between SETNX and EXPIRE; B waits for ever. Second: A dies at work; B, who polls, prolongs the dead man's lock each
    time that it is about to end, and waits for ever too. So it is worse than the rung that it repairs.
    Fixed by the right question, asked by the server: `ttl-healed-in-one-script`. Source: article 003.
    """

    slug = "ttl-healed-by-waiters"
    title = "TTL healed by waiters"
    flaw = "It heals no lock without a TTL, and keeps a dead holder's lock alive."
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
