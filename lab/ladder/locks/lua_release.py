"""`lua-release`: the server compares and deletes, in one script."""

from __future__ import annotations

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class LuaRelease(LockRung):
    """Flawed, but no longer in its release: it is right, and takes one round trip instead of three.

    This is where most articles end. The TTL is a guess about how long the work takes, and the guess is wrong on the day
    of the sale. The schedule: A takes the lock and works for longer than the TTL; B takes it too; both are inside. A
    could know, by his own clock, but nobody can make him look.
    Fixed by a watchdog that extends it: `renewal`. Source: articles 000, 002 (section 3.3), 003 and 004.
    """

    slug = "lua-release"
    title = "Owner value: release in Lua"
    flaw = "The work takes longer than the TTL, and two are inside."
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
