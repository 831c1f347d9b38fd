"""`redis-lock`: lock, check, decrement, save, commit, unlock, in this order. The lock is a parameter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from django.db import connection, transaction
from django.db.models import F
from redis import RedisError

from inventory.draft import Draft, Line, Placement, Save, save_one
from inventory.errors import SoldOut, StockBusy, StockUnavailable
from inventory.models import StockItem
from inventory.strategies.base import Strategy
from locking import Lease, Lock, LockTimeout, LockUnavailable

CLAIM = """
    UPDATE inventory_stockitem
       SET fence = %(fence)s
     WHERE sku = %(sku)s AND fence < %(fence)s
 RETURNING on_hand
"""


class Locked(Strategy):
    """A lock a sku around check, decrement and commit.

    The lock keeps buyers from colliding. It cannot keep a paused one from waking after its lease has ended, so the
    first statement claims the row for the lease's fence, and the decrement requires that fence: who has been
    overtaken changes nothing.

    Args:
        make_lock: the lock of a sku. It must be fenced.
        wait: seconds a buyer waits for each lock.
    """

    def __init__(self, name: str, make_lock: Callable[[str], Lock], *, wait: float) -> None:
        self.name = name
        self.make_lock = make_lock
        self.wait = wait

    def _place(self, order: Draft, save: Save) -> Placement:
        try:
            with ExitStack() as leases:
                held = [(line, leases.enter_context(self.make_lock(line.sku).hold(self.wait))) for line in order.lines]
                # The commit comes before the ExitStack lets the locks go. The other way round is a rung of the ladder.
                with transaction.atomic(durable=True):
                    for line, lease in held:
                        check_and_decrement(line, lease)
                    save_one(order, save)
        except LockTimeout as error:
            raise StockBusy(str(error)) from error
        except (LockUnavailable, RedisError) as error:  # no answer, or an error: out of memory, a replica
            raise StockUnavailable(str(error)) from error
        return Placement.COMMITTED


def check_and_decrement(line: Line, lease: Lease) -> None:
    """Subtract a line in the open transaction, as the holder of its lock.

    Raises:
        SoldOut: fewer units are on hand than the line wants.
        StockBusy: a later holder has been here, so this lease is over, whatever its clock says.
    """
    if lease.fence is None:
        raise ValueError("This strategy needs a lock that gives a fence.")
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, {"sku": line.sku, "fence": lease.fence})
        claimed = cursor.fetchone()
    if claimed is None:
        if not StockItem.objects.filter(sku=line.sku).exists():
            raise SoldOut(line.sku, wanted=line.quantity, left=0)
        raise StockBusy(f"{line.sku}: fence {lease.fence} was overtaken by a later holder of the lock.")
    if claimed[0] < line.quantity:
        raise SoldOut(line.sku, wanted=line.quantity, left=claimed[0])
    changed = StockItem.objects.filter(sku=line.sku, fence=lease.fence, on_hand__gte=line.quantity).update(
        on_hand=F("on_hand") - line.quantity, version=F("version") + 1
    )
    if not changed:
        raise StockBusy(f"{line.sku}: the row changed under fence {lease.fence}.")
