"""`fence-on-write-only`: the store refuses a write with a fence older than the last one written; a read needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lab.explorer.terms import Fault, Invariant
from lab.ladder.locks.rung import Rung

if TYPE_CHECKING:
    from redis import Redis

WRITE = """
-- KEYS: the stock, the last fence. ARGV: the fence, the value. Returns 1 when it was written, 0 when the fence is old.
if tonumber(redis.call('GET', KEYS[2]) or 0) > tonumber(ARGV[1]) then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1])
return 1
"""


class FenceOnWriteOnly(Rung):
    """Flawed: a fence that is fine when it is written with says nothing of what was read before.

    The schedule: 33 reads and is paused beyond its lease; 34 reads the same; 33 wakes and writes, and is let in, as
    nobody with a higher fence has written yet; 34 writes what it had computed from its read. Each fence is fine in its
    turn, and the update of 33 is lost.
    Fixed by a first statement that claims the fence: `fence`. Source: article 002 (section 4.2), after Kleppmann.

    Args:
        client: a client of the store.
        stock: a key with a whole number.
    """

    slug = "fence-on-write-only"
    title = "Fence checked on the write only"
    flaw: ClassVar[str | None] = "Two who have read the same value may both write, in the order of their fences."
    breaks: ClassVar[Invariant | None] = "conserved"
    broken_by: ClassVar[Fault | None] = "pause"
    survives = frozenset({"crash"})
    fixed_by: ClassVar[str | None] = "fence"
    source = "002"

    def __init__(self, client: Redis, stock: str) -> None:
        self.client: Any = client
        self.keys = (stock, f"{stock}:fence")

    def read(self, fence: int) -> int | None:
        """Return the stock; None when the fence is too old."""
        return int(self.client.get(self.keys[0]) or 0)

    def write(self, fence: int, value: int) -> bool:
        """Set the stock, and return whether the fence allowed it."""
        return bool(self.client.eval(WRITE, 2, *self.keys, fence, value))
