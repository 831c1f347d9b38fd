"""The lock strategies, such as `redis-lock`: lock, check, decrement, save, commit, unlock. The lock is a parameter."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from django.db import connection, transaction
from redis import RedisError

from inventory import observing, stock
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
    """Hold a distributed lock for each sku around check, decrement and commit.

    Guarantees: the lock keeps customers from colliding. It cannot stop a process that was paused until its lease ended,
    so the UPDATE that decrements also writes the lease's fence, and refuses a lease that a later holder has overtaken.
    Fences are comparable within one kind of lock only: the first grant of another kind is accepted whatever its fence
    is. There, and with locks that give no fence, the guard `on_hand >= n` alone remains; it still sells no unit twice.
    Costs: at least two round trips to the lock server for each item, and customers of one sku queue for the lock.
    Choose it: when the decision involves systems beyond Postgres. For stock alone the row's own lock is enough.

    Args:
        name: name of the strategy, and of the kind of fence that its lock gives.
        make_lock: returns the lock of a sku.
        wait: seconds that a customer waits for the locks of the whole order.
    """

    def __init__(self, name: str, make_lock: Callable[[str], Lock], *, wait: float) -> None:
        self.name = name
        self.make_lock = make_lock
        self.wait = wait

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        # Connect before the lock is taken, so that nobody waits for it.
        connection.ensure_connection()
        try:
            with ExitStack() as leases:
                until = time.monotonic() + self.wait
                held = []
                for item in order.items:
                    lock = self.make_lock(item.sku)
                    left = max(0.0, until - time.monotonic())
                    held.append((item, leases.enter_context(observing.hold(lock, left, strategy=self.name))))
                # Commit before the ExitStack releases the locks. The lab shows the other order as a flawed rung.
                with transaction.atomic(durable=True):
                    for item, lease in held:
                        check_and_decrement(item, lease, self.name)
                    save_one(order, save)
        except LockTimeout as error:
            raise StockBusy(str(error)) from error
        except NoSuchLock as error:
            raise StockNotLoaded(str(error)) from error
        except (LockUnavailable, RedisError) as error:  # no answer, or an error: out of memory, or a replica
            raise StockUnavailable(str(error)) from error
        return Placement.COMMITTED


def check_and_decrement(item: RequestItem, lease: Lease, kind: str) -> None:
    """Subtract an item in the open transaction, as the holder of its lock.

    Args:
        kind: the kind of lock that the fence comes from.

    Raises:
        SoldOut: fewer units are on hand than the item wants.
        StockElsewhere: they are not unsplit, see `stock.shortage_error`.
        StockBusy: a later holder of the lock has written the row, so this lease has ended.
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
            raise StockBusy(f"{item.sku}: fence {lease.fence} was overtaken by a later holder of the lock. Try again.")
        raise stock.shortage_error(item.sku, wanted=item.quantity, left=left)
    return None
