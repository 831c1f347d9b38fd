"""`advisory-lock`: take an advisory lock of Postgres for each sku until the transaction ends."""

from __future__ import annotations

from django.db import connection, transaction

from inventory import stock
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies.base import Strategy
from locking.postgres.names import advisory_key

# Postgres takes the locks one by one, in the order of the array, which the caller sorts.
LOCK = "SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS key"


class AdvisoryLockStrategy(Strategy):
    """Take `pg_advisory_xact_lock` on a number for each sku, then check, subtract and save.

    Guarantees: the server releases the lock with the commit, never before. Corrections and returns of stock do not take
    the lock, so the UPDATE still checks `on_hand >= n`.
    Costs: one more statement than `row-lock`. Orders of one sku wait for each other. A refused order locks no row, so
    other writers of the row do not wait for it.
    Choose it: when the protected data has no row, or when its row must stay free for other writers.
    """

    name = "advisory-lock"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            with connection.cursor() as cursor:
                # Sort lock numbers, not skus: all orders must take the same locks in the same order.
                # Two skus may share a lock number, and then orders that lock in the order of skus could deadlock.
                cursor.execute(LOCK, [sorted(key(sku) for sku in order.skus)])
            stock.check(order.items, stock.unsplit(order.skus))
            for item in order.items:
                stock.take(item.sku, item.quantity)
            save_one(order, save)
        return Placement.COMMITTED


def key(sku: str) -> int:
    """Return the lock number of a sku, the same in every process.

    If two skus have the same number, their orders wait for each other, which is harmless. The prefix keeps these
    numbers apart from those of other advisory locks.
    """
    return advisory_key(f"advisory-lock:{sku}")
