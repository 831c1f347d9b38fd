"""A strategy that uses redis-py's lock, for comparison."""

from __future__ import annotations

from contextlib import ExitStack

from django.db import connection, transaction
from django_redis import get_redis_connection
from redis.exceptions import LockError

from inventory import stock
from inventory.errors import StockBusy
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies.base import Strategy


class RedisPyLock(Strategy):
    """Hold redis-py's `Lock` around check, decrement and commit, where `redis-lock` holds our own lock."""

    name = "peer:redis-py-lock"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        client = get_redis_connection("default")
        connection.ensure_connection()
        try:
            with ExitStack() as locks:
                for item in order.items:
                    locks.enter_context(client.lock(f"peer:{item.sku}", timeout=10, blocking_timeout=5))
                with transaction.atomic(durable=True):
                    for item in order.items:
                        stock.take(item.sku, item.quantity)
                    save_one(order, save)
        except LockError as error:
            raise StockBusy(str(error)) from error
        return Placement.COMMITTED
