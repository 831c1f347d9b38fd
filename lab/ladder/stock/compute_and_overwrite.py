"""`compute-and-overwrite`: read the stock, subtract in memory, write the result."""

from __future__ import annotations

from django.db import transaction

from inventory.draft import Draft, Placement, Save, save_one
from inventory.errors import SoldOut
from inventory.strategies import Strategy
from lab.models import RungStock


class ComputeAndOverwrite(Strategy):
    """Flawed: two buyers read the same figure, and the second writes over what the first has written.

    Two orders, and the stock is down by one. The transaction does not help: at READ COMMITTED both may read before
    either writes. Next rung: let the database subtract.
    """

    name = "compute-and-overwrite"

    def _place(self, order: Draft, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            for line in order.lines:
                stock = RungStock.objects.get(sku=line.sku)
                if stock.on_hand < line.quantity:
                    raise SoldOut(line.sku, wanted=line.quantity, left=stock.on_hand)
                RungStock.objects.filter(sku=line.sku).update(on_hand=stock.on_hand - line.quantity)
            save_one(order, save)
        return Placement.COMMITTED
