"""`guarded-update`: one UPDATE both checks and subtracts the stock, so the database decides."""

from __future__ import annotations

from django.db import transaction

from inventory import stock
from inventory.requests import OrderRequest, Placement, Save, save_at_once, save_one
from inventory.strategies.base import Strategy


class GuardedUpdate(Strategy):
    """Run `SET on_hand = on_hand - n WHERE on_hand >= n`, and save the order in the same statement or transaction.

    Guarantees: no unit is sold twice, without any lock of our own. Postgres evaluates the WHERE clause again after it
    has waited for the row, so the test always sees the latest committed stock.
    Costs: one statement. Orders of one sku wait for each other's commit, because each locks the stock row.
    Choose it: to study the idea in one statement, or when each of many products has few customers.
    """

    name = "guarded-update"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        # Try one statement, so that no order waits for a round trip while the row is locked. If it saves nothing, the
        # steps below find out why.
        if not save_at_once([order], save, stock.taking(order.units)):
            with transaction.atomic(durable=True):
                for item in order.items:
                    stock.take(item.sku, item.quantity)
                save_one(order, save)
        return Placement.COMMITTED
