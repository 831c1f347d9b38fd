"""Flawed way of selling: it locks, works and unlocks, without `finally`."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from inventory.errors import StockBusy
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, stock_lock, take


class ExceptionLeavesTheLock(StockRung):
    """Flawed: a refusal is an exception, and it skips the unlock.

    The schedule that breaks it: client A wants more units than there are and is refused. B may buy, but has to wait
    until the TTL of A's lock is over, although A is gone. After the stock is sold out, every answer takes a TTL.

    The lock is freed in the end, because a lease that nothing refers to is not renewed. A lock without a TTL, or with a
    watchdog that keeps leases alive, would stay forever.

    Fixed by a `with` block, or `finally`: `redis-lock`. Source: article 002 (section 2).
    """

    slug = "exception-leaves-the-lock"
    title = "An exception leaves the lock held"
    flaw = "The client after a refusal waits until the TTL is over."
    breaks = "progress"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "redis-lock"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        leases = []
        for item in order.items:
            lease = stock_lock(item.sku).acquire(timeout=settings.STOCK_LOCK_WAIT)
            if lease is None:
                raise StockBusy(f"Another client holds the lock of {item.sku}. Try again.")
            leases.append(lease)
        with transaction.atomic(durable=True):
            for item in order.items:
                take(item)
            save_one(order, save)
        for lease in leases:
            lease.release()
        return Placement.COMMITTED
