"""Flawed way of selling: it catches the refusal, and then inserts the order all the same."""

from __future__ import annotations

import logging

from django.db import transaction

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, locked, take

logger = logging.getLogger(__name__)


class RefusalSwallowed(StockRung):
    """Flawed: the code catches the refusal to roll back and does not raise it again, so it goes on as after a success.

    Stock, lock and commit are in order. The schedule that breaks it needs no concurrency: client A buys the last unit.
    B is refused, its subtraction is rolled back, and its order is written.

    Fixed by an exception that leaves the function: `redis-lock`. Source: article 002 (section 2), whose published
    listing has this flaw.
    """

    slug = "refusal-swallowed"
    title = "Refusal swallowed"
    flaw = "A customer whose refusal was caught and dropped gets an order without a unit."
    breaks = "conserved"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "redis-lock"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with locked(*(item.sku for item in order.items)), transaction.atomic(durable=True):
            try:
                with transaction.atomic():
                    for item in order.items:
                        take(item)
            except SoldOut as refused:
                logger.info("%s: rolled back", refused)
            save_one(order, save)
        return Placement.COMMITTED
