"""Flawed way of selling: it splits the stock into N keys with a lock each, and tries only one of them."""

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
    """Flawed: if one segment of the stock is empty, the customer is told "sold out".

    With N locks, N customers buy at once, and no unit is sold twice. The schedule that breaks it: client A empties a
    segment. B is sent to the same segment and is refused, with units left in the others. An order of several units is
    also refused if no single segment has enough, although all of them together would have: the remainders cannot be
    sold.

    Fixed by trying the other segments and gathering their remainders before the answer is "sold out":
    `segmented-redis`. Source: articles 000 and 002 (section 5.2).
    """

    slug = "segmented-keys"
    title = "Segmented keys"
    flaw = "A customer is refused although other segments, or all of them together, have enough units."
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
        """Return the segment to which a customer is sent."""
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
