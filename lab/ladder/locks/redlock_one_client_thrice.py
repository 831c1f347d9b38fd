"""Flawed lock: a Redlock whose three servers are one server, three times."""

from __future__ import annotations

from typing import Any

from lab.ladder.locks.rung import WITH_A_TTL, LockRung

TAKE = """
-- KEYS: the lock. ARGV: the owner, its TTL in milliseconds. Returns 1 if it was granted, also once more, else 0.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
FREE = """
-- KEYS: the lock. ARGV: the owner. Returns 1 if the lock was the owner's, who holds it once less, else 0.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then
    redis.call('DEL', KEYS[1])
end
return 1
"""


class RedlockOneClientThrice(LockRung):
    """Flawed: the majority is three votes of one server, so the loss of that server is the loss of all votes.

    The lock on the server is re-entrant, as in Redisson: a hash with the owner and a count. That is why nothing looks
    wrong. The first vote grants the lock, the other two raise the count, and the client has three votes of three. The
    schedule that breaks it: the server grants client A the lock and is lost before it replicates the grant. Its replica
    is promoted and grants B the lock, three times. Both are in the critical section.

    The lock is `one-primary-with-replicas` with three times the round trips. If the lock on the server were not
    re-entrant, the mistake would show at once: a client would get one vote of three, and nobody would ever enter.

    Fixed by servers that are independent: `redlock`. Source: article 002 (section 4.2.1). Its listing says that, to be
    short, it uses one client for three.
    """

    slug = "redlock-one-client-thrice"
    title = "Redlock, one client three times"
    flaw = "All votes come from one server, and a failover forgets them together."
    breaks = "one holder"
    broken_by = "failover"
    preemptions = 1
    survives = frozenset({"late release", "crash"})
    fixed_by = "redlock"
    source = "002"
    capabilities = WITH_A_TTL

    @property
    def nodes(self) -> tuple[Any, ...]:
        """The clients of the servers that vote."""
        return self.client, self.client, self.client

    def take(self, owner: str) -> bool:
        votes = [node.eval(TAKE, 1, self.key, owner, self.milliseconds) for node in self.nodes]
        if 2 * sum(votes) > len(votes):
            return True
        self.free(owner)
        return False

    def free(self, owner: str) -> bool:
        votes = [node.eval(FREE, 1, self.key, owner) for node in self.nodes]
        return 2 * sum(votes) > len(votes)
