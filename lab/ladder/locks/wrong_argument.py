"""Flawed lock: the script receives the owner, but stores the TTL instead."""

from __future__ import annotations

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung

TAKE = """
-- KEYS: the lock. ARGV: the owner, the TTL in milliseconds. Returns 1 if it was granted, else 0.
if redis.call('SETNX', KEYS[1], ARGV[2]) == 1 then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""


class WrongArgument(LockRung):
    """Flawed: the script uses ARGV[2] where ARGV[1] is meant, so it never stores the owner.

    The lock excludes other clients, and it expires, so nothing looks wrong. The schedule that breaks it: client A
    acquires the lock and releases it. The value is not A's token, so the release is refused, and the code ignores the
    reply. B waits for the rest of the TTL although no client is in the critical section. With a TTL of thirty seconds,
    the shop sells two units per minute.

    Fixed by arguments with names (`nx=True, px=…`): `lua-release`. Source: article 000, whose published listing has
    this flaw.
    """

    slug = "wrong-argument"
    title = "The script stores the wrong argument"
    flaw = "Every release is refused, so each lock lasts for its whole TTL."
    breaks = "progress"
    survives = frozenset({"crash"})
    fixed_by = "lua-release"
    source = "000"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.eval(TAKE, 1, self.key, owner, self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))
