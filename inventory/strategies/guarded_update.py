"""`guarded-update`: the database decides, in one statement."""

from __future__ import annotations

from django.db import transaction

from inventory import stock
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies.base import Strategy


class GuardedUpdate(Strategy):
    """`SET on_hand = on_hand - n WHERE on_hand >= n`: the row's own lock items the buyers up until each commit."""

    name = "guarded-update"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            for item in order.items:
                stock.take(item.sku, item.quantity)
            save_one(order, save)
        return Placement.COMMITTED
