"""Flawed way of selling: one script checks and decrements, but the check is wrong by one."""

from __future__ import annotations

from inventory.errors import SoldOut
from inventory.requests import OrderRequest
from lab.ladder.stock.counter_rung import CounterRung

TAKE = """
-- KEYS: the counter of each item. ARGV: the quantity of each.
-- Returns {item, left} of the first item that is refused; nothing when all were taken.
for item = 1, #KEYS do
    local left = tonumber(redis.call('GET', KEYS[item]) or 0)
    if left < 0 then
        return {item, left}
    end
end
for item = 1, #KEYS do
    redis.call('DECRBY', KEYS[item], ARGV[item])
end
"""


class LuaOffByOne(CounterRung):
    """Flawed: the script refuses only if the counter is below zero, so it also sells when the counter is zero.

    The schedule that breaks it: client A buys the last unit, and the counter is 0. The script also sells to B, and only
    then is the counter below zero. Of N units it sells N + 1, in every run and without any load. A test that has a
    stock of a thousand and stops at nine hundred does not notice.

    Fixed by comparing with the quantity: `redis-taken-then-the-process-dies`. Source: article 002 (sections 4.1 and 5),
    whose own script compares the right numbers.
    """

    slug = "lua-off-by-one"
    title = "Lua script, off by one"
    flaw = "The script checks whether the counter is below zero, not whether it covers the order."
    breaks = "conserved"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "redis-taken-then-the-process-dies"
    source = "002"

    def take(self, order: OrderRequest) -> None:
        refused = self.redis.eval(TAKE, len(order.items), *self.keys(order), *(item.quantity for item in order.items))
        if refused:
            item = order.items[refused[0] - 1]
            raise SoldOut(item.sku, wanted=item.quantity, left=max(0, refused[1]))
