"""Flawed way of selling: the script takes units, but does not record whom they are for."""

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
    """Flawed: between the script and the order, only the memory of one process knows whom the units are for.

    While every process lives, units that are taken are sold or put back. The schedule that breaks it: client A's script
    has taken a unit, and A's process dies before the order is written. The counter is down by one, but the stock in
    Postgres is not: no order has the unit, and no customer can buy it. No figure says whether the unit is lost or will
    still be sold.

    Fixed by a script that also records the owner: `redis-loses-its-last-second`. A recorded request without an order is
    then found, and its units are put back. Source: common practice.
    """

    slug = "redis-taken-then-the-process-dies"
    title = "Taken in Redis, then the process dies"
    flaw = "A crash between the counter and the order leaves a unit without an owner."
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
