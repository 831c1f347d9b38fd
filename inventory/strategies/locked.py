"""`…-lock`: lock, check, decrement, save, commit, unlock, in this order. The lock is a parameter."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from django.db import connection, transaction
from redis import RedisError

from inventory import stock
from inventory.errors import StockBusy, StockNotLoaded, StockUnavailable
from inventory.models import StockItem
from inventory.requests import OrderRequest, Placement, RequestItem, Save, save_one
from inventory.strategies.base import Strategy
from locking import Lease, Lock, LockTimeout, LockUnavailable
from locking.postgres import NoSuchLock

CLAIM = """
    UPDATE inventory_stockitem
       SET on_hand = on_hand - %(quantity)s, fence = %(fence)s, fenced_by = %(kind)s, version = version + 1
     WHERE sku = %(sku)s AND (fence < %(fence)s OR fenced_by <> %(kind)s) AND on_hand >= %(quantity)s
"""


class Locked(Strategy):
    """A lock a sku around check, decrement and commit.

    The lock keeps buyers from colliding. It cannot keep a paused one from waking after its lease has ended, so the
    statement that decrements also claims the row for the lease's fence: who has been overtaken changes nothing.

    Locks of one kind count their grants alike, and each kind in its own way, so fences are compared within a kind: the
    first grant of another kind claims the row whatever its fence is. Who slept from before such a change until after it
    is not told apart, and neither is anybody who holds a lock without a fence. Then only the guard stands: it sells no
    unit twice, whoever writes.

    Args:
        name: of the strategy, and of the kind of fence that its lock gives.
        make_lock: the lock of a sku.
        wait: seconds a buyer waits for the locks of the whole cart.
    """

    def __init__(self, name: str, make_lock: Callable[[str], Lock], *, wait: float) -> None:
        self.name = name
        self.make_lock = make_lock
        self.wait = wait

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        # Taken from the pool now: what is slow and can be done before the lock is not done under it.
        connection.ensure_connection()
        try:
            with ExitStack() as leases:
                until = time.monotonic() + self.wait
                held = []
                for item in order.items:
                    lock = self.make_lock(item.sku)
                    held.append((item, leases.enter_context(lock.hold(max(0.0, until - time.monotonic())))))
                # The commit comes before the ExitStack lets the locks go. The other way round is a rung of the ladder.
                with transaction.atomic(durable=True):
                    for item, lease in held:
                        check_and_decrement(item, lease, self.name)
                    save_one(order, save)
        except LockTimeout as error:
            raise StockBusy(str(error)) from error
        except NoSuchLock as error:
            raise StockNotLoaded(str(error)) from error
        except (LockUnavailable, RedisError) as error:  # no answer, or an error: out of memory, a replica
            raise StockUnavailable(str(error)) from error
        return Placement.COMMITTED


def check_and_decrement(item: RequestItem, lease: Lease, kind: str) -> None:
    """Subtract a item in the open transaction, as the holder of its lock.

    Args:
        kind: whose grants the fence counts.

    Raises:
        SoldOut: fewer units are on hand than the item wants.
        StockElsewhere: they are not in the pool, see `stock.short`.
        StockBusy: a later holder has been here, so this lease is over, whatever its clock says.
    """
    if lease.fence is None:
        return stock.take(item.sku, item.quantity)
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, {"sku": item.sku, "quantity": item.quantity, "fence": lease.fence, "kind": kind})
        claimed = cursor.rowcount
    if not claimed:
        row = StockItem.objects.filter(sku=item.sku).values_list("fence", "fenced_by", stock.all_on_hand()).first()
        fence, fenced_by, left = row or (0, "", 0)
        if fenced_by == kind and fence >= lease.fence:
            raise StockBusy(f"{item.sku}: fence {lease.fence} was overtaken by a later holder of the lock.")
        raise stock.short(item.sku, wanted=item.quantity, left=left)
    return None
