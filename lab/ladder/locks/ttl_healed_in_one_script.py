"""Flawed lock: a waiter that finds a lock without a TTL sets one, in one script."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung

HEAL = """
-- KEYS: the lock. ARGV: its TTL in milliseconds. Returns 1 if it had none and has one now, else 0.
if redis.call('PTTL', KEYS[1]) == -1 then
    return redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 0
"""


class TtlHealedInOneScript(LockRung):
    """Flawed: a lock without a TTL gets one, but the key does not say which client holds the lock.

    The server compares PTTL with -1 and sets the TTL in one step. So the lock of a holder that died between SETNX and
    PEXPIRE is free one TTL after the first waiter came. The schedule that breaks it: client A's SETNX arrives, and A is
    slow. B is refused and sets the missing TTL. The TTL runs out, and B acquires the lock. A's late PEXPIRE extends B's
    key, and A enters too.

    A late DEL does the same harm: it deletes B's key, and C enters beside B.

    Fixed by a key that names its owner, and by one command that acquires and sets the TTL: `get-compare-del`. Source:
    article 003, corrected.
    """

    slug = "ttl-healed-in-one-script"
    title = "TTL healed in one script"
    flaw = "It heals, but a late holder extends or releases the lock of another client."
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
