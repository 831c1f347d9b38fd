"""`advisory-lock`: Postgres keeps a lock for the transaction that is not on any row."""

from __future__ import annotations

from django.db import connection, transaction

from inventory import stock
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies.base import Strategy
from locking.postgres.names import advisory_key

# One after the other, in the order of the array.
LOCK = "SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS key"


class AdvisoryLockStrategy(Strategy):
    """`pg_advisory_xact_lock` on a number for each sku; the server lets go of it with the commit, never before.

    Whoever is refused has waited for the lock and touched no row. But it binds only those who ask for it: for whoever
    corrects the stock or gives units back there is the guard in the statement that subtracts.
    """

    name = "advisory-lock"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            with connection.cursor() as cursor:
                # In the order of the numbers, not of the skus: where two skus have the same number, carts that are
                # all in the order of their skus could still wait for each other in a circle.
                cursor.execute(LOCK, [sorted(key(sku) for sku in order.skus)])
            stock.check(order.items, stock.pools(order.skus))
            for item in order.items:
                stock.take(item.sku, item.quantity)
            save_one(order, save)
        return Placement.COMMITTED


def key(sku: str) -> int:
    """The number that stands for a sku, the same in every process; two skus of one number only wait for each other.

    A single 64-bit number leaves no room for a class of locks, so the class is in what is hashed.
    """
    return advisory_key(f"advisory-lock:{sku}")
