"""Flawed way of selling: the database subtracts, but the code checks a value that it has read before."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung
from lab.models import RungStock


class SubtractInSql(StockRung):
    """Flawed: no update is lost any more, but the value that is checked may be out of date.

    The schedule that breaks it: one unit is left. Client A reads 1. B reads 1, subtracts and commits. A subtracts too,
    and the stock is -1.

    Fixed by a check and a subtraction in one statement: `guarded-update`. Source: article 002 (section 1.1, case two).
    """

    slug = "subtract-in-sql"
    title = "Subtract in SQL, check in memory"
    flaw = "Every customer who has read that a unit is left subtracts it."
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
                RungStock.objects.filter(sku=item.sku).update(on_hand=F("on_hand") - item.quantity)
            save_one(order, save)
        return Placement.COMMITTED
