"""`subtract-in-sql`: let the database subtract, but check what was read before."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F

from inventory.draft import Draft, Placement, Save, save_one
from inventory.errors import SoldOut
from inventory.strategies import Strategy
from lab.models import RungStock


class SubtractInSql(Strategy):
    """Flawed: no update is lost any more, but the check is as old as the read.

    Every buyer who has read "one left" subtracts it: the stock goes below zero. Next rung: check and subtract in one
    statement, or let only one buyer at a time come this far.
    """

    name = "subtract-in-sql"

    def _place(self, order: Draft, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            for line in order.lines:
                stock = RungStock.objects.get(sku=line.sku)
                if stock.on_hand < line.quantity:
                    raise SoldOut(line.sku, wanted=line.quantity, left=stock.on_hand)
                RungStock.objects.filter(sku=line.sku).update(on_hand=F("on_hand") - line.quantity)
            save_one(order, save)
        return Placement.COMMITTED
