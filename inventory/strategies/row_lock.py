"""`row-lock`: lock the rows, look, subtract, save, commit."""

from __future__ import annotations

from django.db import transaction

from inventory import stock
from inventory.draft import Draft, Placement, Save, save_one
from inventory.strategies.base import Strategy


class RowLock(Strategy):
    """`SELECT ... FOR UPDATE`: what was read stays true until the commit, and the buyers of a sku stand in line for it.

    The whole cart is locked by one statement, and looked at before anything is written.
    """

    name = "row-lock"

    def _place(self, order: Draft, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            stock.check(order.lines, stock.lock(order.skus))
            for line in order.lines:
                stock.take(line.sku, line.quantity)
            save_one(order, save)
        return Placement.COMMITTED
