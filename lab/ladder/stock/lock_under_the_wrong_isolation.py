"""`lock-under-the-wrong-isolation`: lock, count, commit, unlock, and all of it in a snapshot older than the lock."""

from __future__ import annotations

from contextlib import ExitStack

from django.db import connection, transaction
from django.db.models import Sum

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, locked
from lab.models import RungOrder, RungStock


class LockUnderTheWrongIsolation(StockRung):
    """Flawed: the right order of lock and commit, but what is counted under the lock was fixed before it was granted.

    The stock is no figure that is written but is counted: units received, less the units of all orders. Under
    REPEATABLE READ the first statement takes the snapshot, and here that is the look at the stock before the lock. The
    schedule: B looks; A buys the last unit, commits and unlocks; B is granted the lock, does not see A's order and
    inserts his own. Two rows that are inserted conflict with nothing, so the database does not complain.
    Fixed by a lock that comes before the transaction, under READ COMMITTED: `redis-lock`.
    Source: pretix, which counts its quotas and tests this.
    """

    slug = "lock-under-the-wrong-isolation"
    title = "Lock under the wrong isolation level"
    flaw = "Orders that were committed while one waited for the lock are not seen under it."
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
