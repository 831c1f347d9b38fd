"""Flawed way of selling: one transaction takes the stock under the lock, a later one saves the order."""

from __future__ import annotations

from django.db import transaction

from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, locked, take


class OrderAfterTheUnlock(StockRung):
    """Flawed: stock and order belong together but are committed separately.

    The lock is held as briefly as possible, and while every process lives nothing goes wrong. The schedule that breaks
    it: client A takes a unit and commits. Its process dies before the second transaction. B is told "sold out". The
    unit is gone, and no order has it.

    Fixed by one transaction for stock and order, under the lock: `redis-lock`. Source: article 002 (section 2), where
    even the listings that it calls right have this flaw.
    """

    slug = "order-after-the-unlock"
    title = "Order after the unlock"
    flaw = "A crash between two commits leaves a unit that is taken but belongs to no order."
    breaks = "conserved"
    broken_by = "crash"
    breaks_under = "crash"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "redis-lock"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with locked(*(item.sku for item in order.items)), transaction.atomic(durable=True):
            for item in order.items:
                take(item)
        with transaction.atomic(durable=True):
            save_one(order, save)
        return Placement.COMMITTED
