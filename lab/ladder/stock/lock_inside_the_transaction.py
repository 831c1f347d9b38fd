"""`lock-inside-the-transaction`: lock, check, subtract, unlock; then the transaction commits."""

from __future__ import annotations

from contextlib import ExitStack

from django.conf import settings
from django.db import transaction
from django.db.models import F

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung
from lab.models import RungStock
from locking import ThreadLock


class LockInsideTheTransaction(StockRung):
    """Flawed: the lock is let go before others can see what was done under it.

    The order around it decides: a lock on a method whose decorator opens the transaction ends first. The schedule: A
    locks, subtracts the last unit and unlocks; before his commit B locks, reads "one left", and subtracts as soon as A
    has committed: the stock is below zero.
    Fixed by a lock around the transaction: `redis-lock`. The lock here is one of this process, as in the source, and
    one process is enough to break it, at the last unit, though not in every burst. With two it breaks more often,
    since between processes it excludes nobody at all: see `thread-lock` of track one.
    Source: article 002 (section 1.1, case three).
    """

    slug = "lock-inside-the-transaction"
    title = "Lock inside the transaction"
    flaw = "The next holder reads before the last one has committed."
    breaks = "conserved"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "redis-lock"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True), ExitStack() as leases:
            for item in order.items:
                leases.enter_context(ThreadLock(f"lab:{item.sku}").hold(settings.STOCK_LOCK_WAIT))
            for item in order.items:
                stock = RungStock.objects.get(sku=item.sku)
                if stock.on_hand < item.quantity:
                    raise SoldOut(item.sku, wanted=item.quantity, left=stock.on_hand)
                RungStock.objects.filter(sku=item.sku).update(on_hand=F("on_hand") - item.quantity)
            save_one(order, save)
        return Placement.COMMITTED
