"""`fence`: the first statement claims the fence and returns the stock; later statements require the fence. Sound."""

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
    """Sound for a store that checks the fence: after fence 34 has read, fence 33 cannot write any more.

    `inventory.strategies.locked.CLAIM` does the same in SQL, in one statement that reads, decides and writes.

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
