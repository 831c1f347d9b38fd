"""`optimistic`: read, decide, and write only if nobody wrote in between."""

from __future__ import annotations

import random
import time

from django.db import transaction
from django.db.models import F

from inventory import stock
from inventory.errors import StockConflict
from inventory.models import StockItem
from inventory.requests import OrderRequest, Placement, RequestItem, Save, save_one
from inventory.strategies.base import Strategy


class Optimistic(Strategy):
    """Compare-and-set on the row's version, tried again a bounded number of times.

    Args:
        attempts: tries in all. When they are used up the answer is "try again", never "sold out".
        backoff: seconds; before its k-th retry it waits a random time up to `backoff * k`, so that the losers of one
            round do not meet again in the next.
    """

    name = "optimistic"

    def __init__(self, *, attempts: int = 20, backoff: float = 0.002) -> None:
        self.attempts = attempts
        self.backoff = backoff

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(random.uniform(0, self.backoff * attempt))  # noqa: S311 - jitter, not a secret
            try:
                with transaction.atomic(durable=True):
                    for item in order.items:
                        compare_and_set(item)
                    save_one(order, save)
            except Overtaken:
                continue
            return Placement.COMMITTED
        raise StockConflict(f"Others were faster {self.attempts} times.")


class Overtaken(Exception):
    """Somebody wrote the row between our read and our write."""


def compare_and_set(item: RequestItem) -> None:
    """Subtract a item in the open transaction, if the row is still the one that was read.

    Raises:
        SoldOut, StockElsewhere: the row that was read has too few units, see `stock.short`.
        Overtaken: the row has changed since.
    """
    row = StockItem.objects.filter(sku=item.sku).only("on_hand", "version").first()
    if row is None or row.on_hand < item.quantity:
        raise stock.short(item.sku, wanted=item.quantity, left=stock.on_hand(item.sku))
    changed = StockItem.objects.filter(sku=item.sku, version=row.version, on_hand__gte=item.quantity).update(
        on_hand=F("on_hand") - item.quantity, version=row.version + 1
    )
    if not changed:
        raise Overtaken
