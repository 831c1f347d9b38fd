"""`wrong-argument`: the owner is given to the take script, which stores the TTL instead."""

from __future__ import annotations

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung

TAKE = """
-- KEYS: the lock. ARGV: the owner, the TTL in milliseconds. Returns 1 when it was granted, else 0.
if redis.call('SETNX', KEYS[1], ARGV[2]) == 1 then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""


class WrongArgument(LockRung):
    """Flawed: ARGV[2] stands where ARGV[1] is meant, so the owner is never written down.

    The lock excludes, and it ends, so nothing looks wrong. The schedule: A takes the lock and frees it; the value is
    not his, the release is refused, and nobody reads that; B waits for the rest of the TTL although nobody is inside.
    With a TTL of thirty seconds the shop sells two units a minute.
    Fixed by arguments that have names (`nx=True, px=…`): `lua-release`. Source: article 000, whose published listing
    does this.
    """

    slug = "wrong-argument"
    title = "The script stores the wrong argument"
    flaw = "Every release is refused, and each lock lasts for its whole TTL."
    breaks = "progress"
    survives = frozenset({"crash"})
    fixed_by = "lua-release"
    source = "000"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.eval(TAKE, 1, self.key, owner, self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))
