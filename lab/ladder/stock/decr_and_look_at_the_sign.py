"""Flawed way of selling: it decrements the counter first, then checks whether that was allowed."""

from __future__ import annotations

from inventory.errors import SoldOut
from inventory.requests import OrderRequest
from lab.ladder.stock.counter_rung import CounterRung


class DecrAndLookAtTheSign(CounterRung):
    """Flawed: a refused order has already been subtracted from the counter, so its units can no longer be sold.

    No unit is sold twice: DECRBY is atomic, and only one customer sees the counter reach zero. The schedule that breaks
    it: one unit is left. Client A wants two; the counter becomes -1, and A is refused. B wants one; the counter becomes
    -2, and B is refused too, with the unit on hand. If every customer wants one unit, the flaw does not show.

    Putting the refused units back helps only in part: a customer who orders after the decrement, and before the units
    are back, is still refused.

    Fixed by a script that checks before it decrements: `redis-taken-then-the-process-dies`. Source: article 002
    (section 5), which recommends the flawed way.
    """

    slug = "decr-and-look-at-the-sign"
    title = "DECR, then check the sign"
    flaw = "A cart that is too large hides the last unit from every customer after it."
    breaks = "no false refusal"
    breaks_under = "mixed carts"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "redis-taken-then-the-process-dies"
    source = "002"

    def take(self, order: OrderRequest) -> None:
        for item in order.items:
            left = self.redis.decrby(self.key(item.sku), item.quantity)
            if left < 0:
                raise SoldOut(item.sku, wanted=item.quantity, left=max(0, left + item.quantity))
