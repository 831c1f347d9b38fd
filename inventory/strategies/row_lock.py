"""`row-lock`: lock the rows, look, subtract, save, commit."""

from __future__ import annotations

from django.db import transaction

from inventory import stock
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies.base import Strategy


class RowLockStrategy(Strategy):
    """`SELECT ... FOR UPDATE`: what was read stays true until the commit, and the buyers of a sku stand in item for it.

    The whole cart is locked by one statement, and looked at before anything is written.
    """

    name = "row-lock"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            stock.check(order.items, stock.lock(order.skus))
            for item in order.items:
                stock.take(item.sku, item.quantity)
            save_one(order, save)
        return Placement.COMMITTED
