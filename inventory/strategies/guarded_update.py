"""`guarded-update`: the database decides, in one statement."""

from __future__ import annotations

from django.db import transaction

from inventory import stock
from inventory.draft import Draft, Placement, Save, save_one
from inventory.strategies.base import Strategy


class GuardedUpdate(Strategy):
    """`SET on_hand = on_hand - n WHERE on_hand >= n`: the row's own lock lines the buyers up until each commit."""

    name = "guarded-update"

    def _place(self, order: Draft, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            for line in order.lines:
                stock.take(line.sku, line.quantity)
            save_one(order, save)
        return Placement.COMMITTED
