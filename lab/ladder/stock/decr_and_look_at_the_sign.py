"""`decr-and-look-at-the-sign`: decrement first, then see whether that was allowed."""

from __future__ import annotations

from inventory.errors import SoldOut
from inventory.requests import OrderRequest
from lab.ladder.stock.counter_rung import CounterRung


class DecrAndLookAtTheSign(CounterRung):
    """Flawed: a refusal costs the units that it refuses.

    Nothing is sold twice: DECRBY is atomic, and only one buyer sees it reach zero. The schedule: one unit is left; A
    wants two, the counter is -1 and he is refused; B wants one, the counter is -2 and he is refused too, with the unit
    on hand. While everybody wants one unit nobody notices. To give back what was refused helps only in part: whoever
    comes between the decrement and the giving back is refused as well.
    Fixed by a script that checks before it decrements: `redis-taken-then-the-process-dies`.
    Source: article 002 (section 5), which advises it.
    """

    slug = "decr-and-look-at-the-sign"
    title = "DECR, and a look at the sign"
    flaw = "A cart that is too large hides the last unit from everybody after it."
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
