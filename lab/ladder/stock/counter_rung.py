"""What the rungs share in which Redis decides: a counter a sku, and an order that is written whatever Postgres has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django_redis import get_redis_connection

from inventory.requests import OrderRequest, Placement, Save, Saved, save_one
from lab.ladder.stock.rung import StockRung, subtract
from lab.models import RungStock


class CounterRung(StockRung):
    """Take from the counter in Redis, then subtract and save in Postgres, unguarded: Redis has decided.

    A rung fills in `take`: how the units are taken from the counter.
    """

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        self.take(order)
        with transaction.atomic(durable=True):
            self.write(order, save)
        return Placement.COMMITTED

    @abstractmethod
    def take(self, order: OrderRequest) -> None:
        """Take every item of an order from the counters.

        Raises:
            SoldOut: Redis refuses it.
        """

    def write(self, order: OrderRequest, save: Save) -> None:
        """Subtract and save in the open transaction. What is refused goes back while it surely does not commit."""
        try:
            for item in order.items:
                subtract(item)
            save_one(order, save)
        except BaseException:
            self.give_back(order)
            raise

    def give_back(self, order: OrderRequest) -> None:
        """Add the units of an order that is not written."""
        for item in order.items:
            self.redis.incrby(self.key(item.sku), item.quantity)

    @property
    def redis(self) -> Any:
        return get_redis_connection("default")

    def key(self, sku: str) -> str:
        """The counter of a sku. One hash tag for all: a script that takes a cart lives in one slot."""
        return f"lab:{{{self.slug}}}:{sku}"

    def keys(self, order: OrderRequest) -> list[str]:
        return [self.key(item.sku) for item in order.items]

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        for stock in RungStock.objects.filter(sku__in=skus):
            self.redis.set(self.key(stock.sku), stock.on_hand)

    def copy(self, sku: str) -> int:
        return int(self.redis.get(self.key(sku)) or 0)
