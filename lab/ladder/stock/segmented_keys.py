"""`segmented-keys`: the stock in N parts, each with a key and a lock of its own, and one of them asked."""

from __future__ import annotations

import random
from collections.abc import Sequence

from django.db import transaction
from django_redis import get_redis_connection

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, Save, Saved, save_one
from lab.ladder.stock.rung import StockRung, locked, take
from lab.models import RungStock

SEGMENTS = 4


class SegmentedKeys(StockRung):
    """Flawed: who finds one part empty says that all is sold.

    N locks let N buyers in at once, and nothing is sold twice. The schedule: A empties a part; B is sent to the same
    part and is refused, with units left in the others. And a cart of several units is refused when no part covers it,
    although all of them together would: the remainders are stranded.
    Fixed by asking the others, and gathering what is left of them, before the answer is "sold out": `segmented-redis`.
    Source: articles 000 and 002 (section 5.2).
    """

    slug = "segmented-keys"
    title = "Segmented keys"
    flaw = "A buyer is refused although other segments, or all of them together, have what he wants."
    breaks = "no false refusal"
    breaks_under = "several units"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "segmented-redis"
    source = "000, 002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        redis = get_redis_connection("default")
        segments = [f"{item.sku}:{self.pick()}" for item in order.items]
        with locked(*segments):
            for item, segment in zip(order.items, segments, strict=True):
                left = int(redis.get(self.key(segment)) or 0)
                if left < item.quantity:
                    raise SoldOut(item.sku, wanted=item.quantity, left=left)
            with transaction.atomic(durable=True):
                for item in order.items:
                    take(item)
                save_one(order, save)
            for item, segment in zip(order.items, segments, strict=True):
                redis.decrby(self.key(segment), item.quantity)
        return Placement.COMMITTED

    def pick(self) -> int:
        """The segment that a buyer is sent to."""
        return random.randrange(SEGMENTS)  # noqa: S311 - spreads load, guards nothing

    def key(self, segment: str) -> str:
        return f"lab:{self.slug}:{segment}"

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        redis = get_redis_connection("default")
        for stock in RungStock.objects.filter(sku__in=skus):
            for segment in range(SEGMENTS):
                units = (stock.on_hand + segment) // SEGMENTS
                redis.set(self.key(f"{stock.sku}:{segment}"), units)

    def copy(self, sku: str) -> int:
        redis = get_redis_connection("default")
        return sum(int(redis.get(self.key(f"{sku}:{segment}")) or 0) for segment in range(SEGMENTS))
