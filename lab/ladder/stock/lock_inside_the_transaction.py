"""Flawed way of selling: it unlocks first, and the transaction commits after that."""

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
    """Flawed: the lock is released before other transactions can see the change that it protects.

    A lock inside the transaction ends before the commit, for example if a decorator opens the transaction and the
    method takes the lock. The schedule that breaks it: client A locks, subtracts the last unit and unlocks. Before A
    commits, B locks and reads "one left". B subtracts as soon as A has committed, and the stock is -1.

    Fixed by a lock around the transaction: `redis-lock`. As in the source, the lock here is local to the process. One
    process is enough to break the rung, but not in every burst. Two processes break it more often, because each has a
    lock of its own: see `thread-lock`. Source: article 002 (section 1.1, case three).
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
