"""`exception-leaves-the-lock`: lock, work, unlock, and no `finally`."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from inventory.errors import StockBusy
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, stock_lock, take


class ExceptionLeavesTheLock(StockRung):
    """Flawed: a refusal is an exception, and it jumps over the unlock.

    The schedule: A wants more than there is and is refused; B, who may enter, waits for the TTL of a lock that nobody
    holds any more. Once the stock is sold out every answer costs a TTL. The lock frees itself in the end, since a
    lease that nobody refers to is not renewed; a lock without a TTL, or with a watchdog that holds on to leases, would
    stay for ever.
    Fixed by a `with` block, or `finally`: `redis-lock`. Source: article 002 (section 2).
    """

    slug = "exception-leaves-the-lock"
    title = "Exception leaves the lock"
    flaw = "Whoever comes after a refusal waits until the TTL is over."
    breaks = "progress"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "redis-lock"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        leases = []
        for item in order.items:
            lease = stock_lock(item.sku).acquire(timeout=settings.STOCK_LOCK_WAIT)
            if lease is None:
                raise StockBusy(f"Somebody holds the lock of {item.sku}.")
            leases.append(lease)
        with transaction.atomic(durable=True):
            for item in order.items:
                take(item)
            save_one(order, save)
        for lease in leases:
            lease.release()
        return Placement.COMMITTED
