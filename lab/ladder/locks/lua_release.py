"""Flawed lock: one script on the server compares the owner and deletes the key."""

from __future__ import annotations

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class LuaRelease(LockRung):
    """Flawed: the release is right and takes one round trip, but the TTL can be shorter than the work.

    Most articles recommend this release. The TTL is a guess about how long the work takes, and on the day of the sale
    it is wrong. The schedule that breaks it: client A acquires the lock, and its work takes longer than the TTL. B
    acquires the lock too. Both are in the critical section. A could notice the expiry on its own clock, but nothing
    makes A check.

    Fixed by a watchdog that extends the lock: `renewal`. Source: articles 000, 002 (section 3.3), 003 and 004.
    """

    slug = "lua-release"
    title = "Owner value: release in Lua"
    flaw = "The work takes longer than the TTL, and two clients are in the critical section."
    breaks = "one holder"
    broken_by = "expiry"
    survives = frozenset({"late release", "crash"})
    fixed_by = "renewal"
    source = "000, 002, 003, 004"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))
