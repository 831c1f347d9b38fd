"""Flawed lock: the renewal is right, but the release checks and deletes in two commands."""

from __future__ import annotations

from lab.ladder.locks.rung import RenewedRung

EXTEND = """
-- KEYS: the lock. ARGV: the owner, its TTL in milliseconds. Returns 1 if the lock was the owner's and goes on, else 0.
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""


class RenewalAndPlainRelease(RenewedRung):
    """Flawed: the watchdog extends the lock only during the work. The release has the same gap as `get-compare-del`.

    The schedule that breaks it: client A has done its work, the watchdog has stopped, and A checks that the lock is
    still its own. Then A is delayed for longer than the TTL. The key expires, and B acquires the lock. A's DEL deletes
    B's key, and C enters beside B.

    A watchdog that continues until the DEL is answered helps against a slow network. It does not help against a pause
    of the process, which also stops the watchdog.

    Fixed by a script that compares and deletes: `renewal`. Source: article 002 (section 5.1), which offers renewal as
    the cure of this race.
    """

    slug = "renewal-and-plain-release"
    title = "Renewal, and a release in two commands"
    flaw = "The lock expires between the check and the DEL, after the watchdog has stopped."
    breaks = "one holder"
    broken_by = "late release"
    clients = 3
    survives = frozenset({"expiry", "crash"})
    fixed_by = "renewal"
    source = "002"

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return self.client.get(self.key) == owner.encode() and bool(self.client.delete(self.key))

    def prolong(self, owner: str) -> bool:
        return bool(self.client.eval(EXTEND, 1, self.key, owner, self.milliseconds))
