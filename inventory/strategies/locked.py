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
from inventory.requests import OrderRequest, Placement, RequestItem, Save, Taking, save_at_once, save_one
from inventory.strategies.base import Strategy
from locking import Lease, Lock, LockTimeout, LockUnavailable
from locking.postgres import NoSuchLock

CLAIM = """
    UPDATE inventory_stockitem
       SET on_hand = on_hand - %(units)s, fence = %(fence)s, fenced_by = %(kind)s, version = version + 1
     WHERE sku = %(sku)s AND (fence < %(fence)s OR fenced_by <> %(kind)s) AND on_hand >= %(units)s
"""


class Locked(Strategy):
    """Hold a distributed lock for each sku around check, decrement and commit.

    Guarantees: only the holder of the lock sells the sku. A process that was paused until its lease expired may still
    write. So each lease has a fence, a number that grows with every grant. The UPDATE stores the fence. It writes
    nothing if the row has this fence already, or a higher one. Fences of different kinds of lock cannot be compared,
    and some locks give none. Then only the guard `on_hand >= n` remains, which also keeps a unit from being sold twice.
    Costs: at least two round trips to the lock server for each item, and customers of one sku queue for the lock.
    Choose it: when the decision involves systems beyond Postgres. For stock alone the row's own lock is enough.

    Args:
        name: name of the strategy, stored with each fence as the kind of lock that gave it.
        make_lock: returns the lock of a sku.
        wait: seconds that a customer waits for the locks of the whole order.
    """

    def __init__(self, name: str, make_lock: Callable[[str], Lock], *, wait: float) -> None:
        self.name = name
        self.make_lock = make_lock
        self.wait = wait

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        # Connect to Postgres before taking the lock, so that its waiters do not wait for the connection, too.
        connection.ensure_connection()
        try:
            with ExitStack() as leases:
                until = time.monotonic() + self.wait
                held = []
                for item in order.items:
                    lock = self.make_lock(item.sku)
                    left = max(0.0, until - time.monotonic())
                    held.append((item, leases.enter_context(observing.hold(lock, left, strategy=self.name))))
                # Commit before the ExitStack releases the locks. Otherwise the next holder reads old stock. For one
                # sku, use one statement: the lock is held for one round trip. A cart has a fence for each sku, so it
                # takes several steps.
                if len(held) == 1 and save_at_once([order], save, taking(*held[0], self.name)):
                    return Placement.COMMITTED
                with transaction.atomic(durable=True):
                    for item, lease in held:
                        check_and_decrement(item, lease, self.name)
                    save_one(order, save)
        except LockTimeout as error:
            raise StockBusy(str(error)) from error
        except NoSuchLock as error:
            raise StockNotLoaded(str(error)) from error
        except (LockUnavailable, RedisError) as error:  # The server is away, out of memory, or a replica.
            raise StockUnavailable(str(error)) from error
        return Placement.COMMITTED


def taking(item: RequestItem, lease: Lease, kind: str) -> Taking:
    """Return the UPDATE of `check_and_decrement`, for `save_at_once`. It takes the same arguments."""
    if lease.fence is None:
        return stock.taking({item.sku: item.quantity})
    return Taking(CLAIM, {"sku": item.sku, "units": item.quantity, "fence": lease.fence, "kind": kind}, rows=1)


def check_and_decrement(item: RequestItem, lease: Lease, kind: str) -> None:
    """Subtract an item in the open transaction. The caller holds the lock of its sku.

    Args:
        kind: the kind of lock that gave the fence.

    Raises:
        SoldOut: fewer units are on hand than the item wants.
        StockElsewhere: enough units are on hand, but not in the stock row, see `stock.shortage_error`.
        StockBusy: a later holder of the lock has written the row, so this lease has ended.
    """
    if lease.fence is None:
        return stock.take(item.sku, item.quantity)
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, taking(item, lease, kind).arguments)
        claimed = cursor.rowcount
    if not claimed:
        row = StockItem.objects.filter(sku=item.sku).values_list("fence", "fenced_by", stock.all_on_hand()).first()
        fence, fenced_by, left = row or (0, "", 0)
        if fenced_by == kind and fence >= lease.fence:
            raise StockBusy(f"{item.sku}: fence {lease.fence} was overtaken by a later holder of the lock. Try again.")
        raise stock.shortage_error(item.sku, wanted=item.quantity, left=left)
    return None
