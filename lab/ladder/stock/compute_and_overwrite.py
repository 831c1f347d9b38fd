"""Flawed way of selling: it reads the stock, subtracts in memory and writes the result."""

from __future__ import annotations

from django.db import transaction

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung
from lab.models import RungStock


class ComputeAndOverwrite(StockRung):
    """Flawed: the second customer overwrites the stock that the first one has written.

    The schedule that breaks it: client A reads 10. B reads 10, writes 9 and commits. A writes 9. There are two orders,
    but the stock is down by one. The transaction does not help: at READ COMMITTED both may read before either writes.

    Fixed by one statement in which the database checks and subtracts: `guarded-update`. The rung `subtract-in-sql` does
    half of that. Source: article 002 (section 1.1, case one).
    """

    slug = "compute-and-overwrite"
    title = "Compute and overwrite"
    flaw = "Two customers read the same stock, and the second write overwrites the first."
    breaks = "conserved"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "guarded-update"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            for item in order.items:
                stock = RungStock.objects.get(sku=item.sku)
                if stock.on_hand < item.quantity:
                    raise SoldOut(item.sku, wanted=item.quantity, left=stock.on_hand)
                RungStock.objects.filter(sku=item.sku).update(on_hand=stock.on_hand - item.quantity)
            save_one(order, save)
        return Placement.COMMITTED
