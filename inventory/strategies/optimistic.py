"""`optimistic`: read the row, decide, and write only if its version is unchanged; otherwise try again."""

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
    """Compare-and-set on the row's version, with a bounded number of attempts.

    Guarantees: no unit is sold twice, and "sold out" is answered only after reading too few units. When all attempts
    fail, the answer is "try again".
    Costs: one read per item while there is no contention. With many customers of one sku most attempts fail, and each
    failed attempt costs a transaction.
    Choose it: when conflicts are rare. It does not suit a flash sale; the shop has it for comparison.

    Args:
        attempts: maximum number of attempts.
        backoff: seconds. Retry k waits a random time of up to `backoff * k`, so that orders which collided once do not
            collide again.
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
            except VersionChanged:
                continue
            return Placement.COMMITTED
        raise StockConflict(f"Other orders changed the stock before each of {self.attempts} attempts. Try again.")


class VersionChanged(Exception):
    """Another transaction wrote the row between our read and our write."""


def compare_and_set(item: RequestItem) -> None:
    """Subtract an item in the open transaction if the row is unchanged since it was read.

    Raises:
        SoldOut, StockElsewhere: the stock row has too few units, see `stock.shortage_error`.
        VersionChanged: the row has changed.
    """
    row = StockItem.objects.filter(sku=item.sku).only("on_hand", "version").first()
    if row is None or row.on_hand < item.quantity:
        raise stock.shortage_error(item.sku, wanted=item.quantity, left=stock.on_hand(item.sku))
    changed = StockItem.objects.filter(sku=item.sku, version=row.version, on_hand__gte=item.quantity).update(
        on_hand=F("on_hand") - item.quantity, version=row.version + 1
    )
    if not changed:
        raise VersionChanged
