"""Base class of flawed ways of selling in which a counter in Redis decides alone, and Postgres checks nothing."""

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
    """Take units from the counter in Redis, then subtract and save in Postgres without a check.

    A subclass implements `take`, which takes the units from the counter.
    """

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        self.take(order)
        with transaction.atomic(durable=True):
            self.write(order, save)
        return Placement.COMMITTED

    @abstractmethod
    def take(self, order: OrderRequest) -> None:
        """Take every item of an order from its counter in Redis.

        Raises:
            SoldOut: a counter has fewer units than its item needs.
        """

    def write(self, order: OrderRequest, save: Save) -> None:
        """Subtract the items and save the order in the open transaction.

        If that fails, put the units back into the counters: the transaction will not commit.
        """
        try:
            for item in order.items:
                subtract(item)
            save_one(order, save)
        except BaseException:
            self.give_back(order)
            raise

    def give_back(self, order: OrderRequest) -> None:
        """Put the units of an order back into their counters, because the order was not written."""
        for item in order.items:
            self.redis.incrby(self.key(item.sku), item.quantity)

    @property
    def redis(self) -> Any:
        return get_redis_connection("default")

    def key(self, sku: str) -> str:
        """Return the key of a sku's counter. All keys share a hash tag, so that one script can take a whole cart."""
        return f"lab:{{{self.slug}}}:{sku}"

    def keys(self, order: OrderRequest) -> list[str]:
        return [self.key(item.sku) for item in order.items]

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        for stock in RungStock.objects.filter(sku__in=skus):
            self.redis.set(self.key(stock.sku), stock.on_hand)

    def copy(self, sku: str) -> int:
        return int(self.redis.get(self.key(sku)) or 0)
