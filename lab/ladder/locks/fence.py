"""Sound store: it refuses statements of a client after the first statement of a newer holder."""

from __future__ import annotations

from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly

CLAIM = """
-- KEYS: the stock, the last fence. ARGV: the fence. Returns the stock, or false if the fence is old.
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[1]) then
    return false
end
redis.call('SET', KEYS[2], ARGV[1])
return redis.call('GET', KEYS[1]) or '0'
"""


class Fence(FenceOnWriteOnly):
    """Sound for a store that checks fences: after a client with fence 34 has read, a client with fence 33 cannot write.

    A fence is a number that grows with every grant of the lock. The first statement of a client stores its fence and
    returns the stock. Later statements need a fence that is not older.

    `inventory.strategies.locked.CLAIM` does this in SQL, in one statement that checks the fence and takes the stock.

    Source: article 002 (section 4.2), after Kleppmann.
    """

    slug = "fence"
    title = "Fence claimed by the first statement"
    flaw = None
    breaks = None
    broken_by = None
    survives = frozenset({"late release", "expiry", "pause", "crash", "clock jump"})
    fixed_by = None

    def read(self, fence: int) -> int | None:
        found = self.client.eval(CLAIM, 2, *self.keys, fence)
        return None if found is None else int(found)
