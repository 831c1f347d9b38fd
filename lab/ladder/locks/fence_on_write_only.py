"""Flawed store: it refuses a write with an old fence, but a read needs no fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lab.explorer.terms import Fault, Invariant
from lab.ladder.locks.rung import Rung

if TYPE_CHECKING:
    from redis import Redis

WRITE = """
-- KEYS: the stock, the last fence. ARGV: the fence, the value. Returns 1 if it was written, 0 if the fence is old.
if tonumber(redis.call('GET', KEYS[2]) or 0) > tonumber(ARGV[1]) then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1])
return 1
"""


class FenceOnWriteOnly(Rung):
    """Flawed: the fence on the write can be valid although the value that was read before is out of date.

    A fence is a number that grows with every grant of the lock. The schedule that breaks it: client A has fence 33 and
    is paused beyond its lease before it reads. B has fence 34 and reads 10. A wakes, reads 10 too and writes 9. The
    store has seen no higher fence and accepts it. B writes 9. Each fence is valid at its write, but A's update is lost.

    Fixed in rung `fence`, where one statement stores the fence and reads the stock. Source: article 002 (section 4.2),
    after Kleppmann.

    Args:
        client: a client of the store.
        stock: key of the stock, which holds a whole number.
    """

    slug = "fence-on-write-only"
    title = "Fence checked on the write only"
    flaw: ClassVar[str | None] = "Two clients that have read the same value may both write, in order of their fences."
    breaks: ClassVar[Invariant | None] = "conserved"
    broken_by: ClassVar[Fault | None] = "pause"
    survives = frozenset({"crash"})
    fixed_by: ClassVar[str | None] = "fence"
    source = "002"

    def __init__(self, client: Redis, stock: str) -> None:
        self.client: Any = client
        self.keys = (stock, f"{stock}:fence")

    def read(self, fence: int) -> int | None:
        """Return the stock. `Fence` overrides this method, and returns None if the fence is too old."""
        return int(self.client.get(self.keys[0]) or 0)

    def write(self, fence: int, value: int) -> bool:
        """Set the stock to `value`. Return whether the store accepted the fence."""
        return bool(self.client.eval(WRITE, 2, *self.keys, fence, value))
