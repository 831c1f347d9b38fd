"""`ttl-healed-in-one-script`: a waiter that finds a lock without a TTL does give it one."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung

HEAL = """
-- KEYS: the lock. ARGV: its TTL in milliseconds. Returns 1 when it had none and has one now, else 0.
if redis.call('PTTL', KEYS[1]) == -1 then
    return redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 0
"""


class TtlHealedInOneScript(LockRung):
    """Flawed, but it heals: -1 is compared with -1, and nobody comes between the look and the EXPIRE.

    A lock whose holder died between SETNX and EXPIRE is free one TTL after the first waiter came. What is left is that
    anyone may free it. The schedule: A is done and about to send his DEL; his TTL passes and B takes the lock; A's DEL
    frees the lock of B, and C enters beside B.
    Fixed by an owner: `get-compare-del`. The crash itself takes no healing in `set-nx-ex`. Source: article 003, put
    right.
    """

    slug = "ttl-healed-in-one-script"
    title = "TTL healed in one script"
    flaw = "It heals, but a holder that comes late frees the lock of another."
    breaks = "one holder"
    broken_by = "late release"
    clients = 3
    survives = frozenset({"crash"})
    fixed_by = "get-compare-del"
    source = "003"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        if not self.client.setnx(self.key, "locked"):
            self.client.eval(HEAL, 1, self.key, self.milliseconds)
            return False
        self.client.pexpire(self.key, self.milliseconds)
        return True

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
