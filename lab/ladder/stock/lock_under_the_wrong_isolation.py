"""Flawed way of selling: it counts orders in a snapshot that is older than its lock."""

from __future__ import annotations

from contextlib import ExitStack

from django.db import connection, transaction
from django.db.models import Sum

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, locked
from lab.models import RungOrder, RungStock


class LockUnderTheWrongIsolation(StockRung):
    """Flawed: lock and commit are in the right order, but the snapshot was fixed before the lock was granted.

    The stock is not stored but counted: units received minus the units of all orders. At REPEATABLE READ the first
    statement takes the snapshot, and here that statement reads the stock before the lock. The schedule that breaks it:
    client A reads. B buys the last unit, commits and unlocks. A gets the lock, does not see B's order and inserts its
    own. Two inserts do not conflict, so the database reports nothing.

    Fixed by a lock that is granted before the transaction begins, at READ COMMITTED: `redis-lock`. Source: pretix,
    which counts its quotas and tests this.
    """

    slug = "lock-under-the-wrong-isolation"
    title = "Lock under the wrong isolation level"
    flaw = "Orders that were committed during the wait for the lock are not visible under it."
    breaks = "conserved"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "redis-lock"
    source = "pretix"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with ExitStack() as leases, transaction.atomic(durable=True):
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            skus = [item.sku for item in order.items]
            received = dict(RungStock.objects.filter(sku__in=skus).values_list("sku", "received"))
            leases.enter_context(locked(*skus))
            for item in order.items:
                orders = RungOrder.objects.filter(sku=item.sku, state=RungOrder.State.PLACED)
                left = received[item.sku] - (orders.aggregate(units=Sum("quantity"))["units"] or 0)
                if left < item.quantity:
                    raise SoldOut(item.sku, wanted=item.quantity, left=left)
            save_one(order, save)
            RungOrder.objects.filter(order=order.id).update(counted=True)
        return Placement.COMMITTED
