"""Base class of the stock rungs: their claims, their locks, and two ways to subtract.

A stock rung is one step of the ladder: a way of selling. All but one in this folder are flawed on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Literal
from urllib.parse import quote

from django.conf import settings
from django.db.models import F
from django_redis import get_redis_connection
from redis import RedisError

from inventory.errors import SoldOut, StockBusy, StockUnavailable
from inventory.requests import OrderRequest, Placement, RequestItem, Save, Saved
from inventory.strategies.base import Strategy, none_saved
from lab.ladder.locks.rung import Rung
from lab.models import RungStock
from locking import LockTimeout, LockUnavailable, RedisLock

Trigger = Literal["load", "several units", "mixed carts", "crash", "lost data", "second click"]


class StockRung(Rung, Strategy):
    """A way of selling with the interface of a strategy. It sells from the lab's own tables and keys.

    `fixed_by` may name a strategy in `inventory`, where the sound ways of selling are.

    Attributes:
        breaks_under: what breaks the rung. `manage.py rush` shows two of the kinds: `load`, customers who come at the
            same time, and `several units`, which is `load` with `--quantity`. A rush does not show the others: `mixed
            carts`, where some customers want one unit and some want several; a `crash` of the web server's process;
            `lost data`, when Redis restarts or Postgres fails over; a `second click` of one customer.
    """

    breaks_under: ClassVar[Trigger] = "load"

    def __init__(self) -> None:
        self.name = self.slug

    def place(self, order: OrderRequest, save: Save, saved: Saved = none_saved) -> Placement:
        """Take the stock and save the order. See `Strategy.place`."""
        try:
            return super().place(order, save, saved)
        except LockTimeout as error:
            raise StockBusy(str(error)) from error
        except (LockUnavailable, RedisError) as error:
            raise StockUnavailable(str(error)) from error

    def copy(self, sku: str) -> int | None:
        """Return how many units the rung's copy of the stock in Redis offers or has reserved. None without a copy."""
        return None


def stock_lock(name: str) -> RedisLock:
    """Return a sound lock for a sku or a segment of its stock. The rungs that use it have their flaw elsewhere."""
    return RedisLock(get_redis_connection("default"), f"lab:{quote(name, safe='/:')}", ttl=settings.STOCK_LOCK_TTL)


@contextmanager
def locked(*names: str) -> Iterator[None]:
    """Hold the locks with these names during the `with` block.

    Raises:
        LockTimeout: not all of the locks were granted within `STOCK_LOCK_WAIT` seconds in total.
        LockUnavailable: Redis did not answer.
    """
    until = time.monotonic() + settings.STOCK_LOCK_WAIT
    with ExitStack() as leases:
        for name in names:
            leases.enter_context(stock_lock(name).hold(max(0.0, until - time.monotonic())))
        yield


def take(item: RequestItem) -> None:
    """Subtract an item in the open transaction if there is enough. Used by rungs whose flaw is elsewhere.

    Raises:
        SoldOut: fewer units are on hand than the item needs.
    """
    enough = RungStock.objects.filter(sku=item.sku, on_hand__gte=item.quantity)
    if not enough.update(on_hand=F("on_hand") - item.quantity):
        raise SoldOut(item.sku, wanted=item.quantity, left=RungStock.objects.get(sku=item.sku).on_hand)


def subtract(item: RequestItem) -> None:
    """Subtract an item in the open transaction without a check."""
    RungStock.objects.filter(sku=item.sku).update(on_hand=F("on_hand") - item.quantity)
