"""`redis-taken-then-the-process-dies`: a script that is right, and nothing that says whose units it took."""

from __future__ import annotations

from inventory.errors import SoldOut
from inventory.requests import OrderRequest
from lab.ladder.stock.counter_rung import CounterRung

TAKE = """
-- KEYS: the counter of each item. ARGV: the quantity of each.
-- Returns {item, left} of the first item that is refused; nothing when all were taken.
for item = 1, #KEYS do
    local left = tonumber(redis.call('GET', KEYS[item]) or 0)
    if left < tonumber(ARGV[item]) then
        return {item, left}
    end
end
for item = 1, #KEYS do
    redis.call('DECRBY', KEYS[item], ARGV[item])
end
"""


class RedisTakenThenTheProcessDies(CounterRung):
    """Flawed: between the counter and the order the units are in the memory of one process.

    While every process lives, what is taken is sold or given back. The schedule: A's script has run, and his process
    dies before the order. The counter is down by one, the stock in Postgres is not: a unit that nobody owns and nobody
    can buy. No figure says whether it is lost or on its way.
    Fixed by a note of whose units they are, in the same script: `redis-loses-its-last-second`. A request that is
    noted and has no order is then found, and its units go back. Source: common practice.
    """

    slug = "redis-taken-then-the-process-dies"
    title = "Taken in Redis, then the process dies"
    flaw = "A crash between the counter and the order leaves a unit that nobody owns."
    breaks = "conserved"
    broken_by = "crash"
    breaks_under = "crash"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "redis-loses-its-last-second"
    source = "common practice"

    def take(self, order: OrderRequest) -> None:
        refused = self.redis.eval(TAKE, len(order.items), *self.keys(order), *(item.quantity for item in order.items))
        if refused:
            item = order.items[refused[0] - 1]
            raise SoldOut(item.sku, wanted=item.quantity, left=refused[1])
