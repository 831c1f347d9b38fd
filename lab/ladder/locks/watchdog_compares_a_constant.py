"""Flawed lock: the watchdog looks for its owner in a key that stores the TTL."""

from __future__ import annotations

from lab.ladder.locks.rung import COMPARE_AND_DELETE, RenewedRung

TAKE = """
-- KEYS: the lock. ARGV: the owner, the TTL in milliseconds. Returns 1 if it was granted, else 0.
if redis.call('SETNX', KEYS[1], ARGV[2]) == 1 then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""


class WatchdogComparesAConstant(RenewedRung):
    """Flawed: every holder stores the same number, so the watchdog never finds its owner and ends at its first check.

    The script uses ARGV[2] where ARGV[1] is meant, as on `wrong-argument`. The watchdog is right: it renews a lock only
    if it belongs to its owner. The schedule that breaks it: client A acquires the lock and works. The watchdog reads
    the TTL where it expects A's token. It concludes that the lock belongs to another client, and ends. The TTL runs
    out, and B acquires the lock. Both are in the critical section.

    If the owner were stored, the watchdog would go on but still renew nothing: `renews-nothing`. Fixed by a script that
    compares and extends: `renewal`. Source: article 000, whose published listing has this flaw.
    """

    slug = "watchdog-compares-a-constant"
    title = "The watchdog compares a constant"
    flaw = "The watchdog takes its own lock for another client's and ends, so the lock expires while its holder works."
    breaks = "one holder"
    broken_by = "expiry"
    survives = frozenset({"late release", "crash"})
    fixed_by = "renewal"
    source = "000"

    def take(self, owner: str) -> bool:
        return bool(self.client.eval(TAKE, 1, self.key, owner, self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))

    def prolong(self, owner: str) -> bool:
        if self.client.get(self.key) != owner.encode():
            return False
        self.take(owner)
        return True
