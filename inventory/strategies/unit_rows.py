"""`unit-rows`: every unit is a row of its own, and selling it deletes the row."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection, transaction
from django.db.models import F

from inventory import stock
from inventory.errors import SoldOut
from inventory.models import StockItem, StockUnit
from inventory.requests import OrderRequest, Placement, RequestItem, Save, Saved, save_one
from inventory.strategies.base import Strategy

NAME = "unit-rows"

# ARRAY(...) is evaluated once. An IN (...) may be evaluated again for each row, and find other units each time.
TAKE = """
    DELETE FROM inventory_stockunit
     WHERE id = ANY (ARRAY(SELECT id FROM inventory_stockunit WHERE sku = %s LIMIT %s FOR UPDATE {locked}))
"""
SPLIT = "INSERT INTO inventory_stockunit (sku) SELECT %s FROM generate_series(1, %s)"


class UnitRows(Strategy):
    """A buyer takes rows that nobody else has locked, so the buyers of one sku do not wait for each other.

    Too few free rows are not yet "sold out": those that others hold come back when their orders fail, and there is the
    pool. So a second look waits for the others and takes from the pool too. It begins with the stock rows of the whole
    cart and with no unit in hand: who waits for a unit holds stock rows, and who holds units from a first look waits
    for no stock row. Without that the two would wait for each other.

    Args:
        rows: units of a sku that are made rows of at a time. The rest stays in the pool, until the rows are used up.
    """

    name = NAME

    def __init__(self, *, rows: int = 1000) -> None:
        self.rows = rows

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        try:
            with transaction.atomic(durable=True):
                for item in order.items:
                    take_free(item)
                save_one(order, save)
        except TooFewFree:
            with transaction.atomic(durable=True):
                pools = stock.lock(order.skus)
                for item in order.items:
                    left = take_all(item, pools.get(item.sku, 0))
                    split(item.sku, min(left, self.rows))
                save_one(order, save)
        return Placement.COMMITTED

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        with transaction.atomic():
            pools = stock.lock(skus)
            StockItem.objects.filter(sku__in=pools).update(split_by=NAME)
            for sku, units in pools.items():
                split(sku, min(units, self.rows))

    def unload(self, skus: Sequence[str]) -> None:
        with transaction.atomic():
            for sku in stock.lock(skus):
                units, _ = StockUnit.objects.filter(item=sku).delete()
                if units:
                    stock.give_back([(sku, units)])
            StockItem.objects.filter(sku__in=skus, split_by=NAME).update(split_by="")


class TooFewFree(Exception):
    """Others hold units that this item needs, or they are in the pool."""


def take_free(item: RequestItem) -> None:
    """Take units that nobody holds, in the open transaction, without waiting.

    Raises:
        SoldOut: there are not enough, even if every order on its way fails: what those have taken is still counted.
        TooFewFree: there may be enough. What was taken has to be rolled back before anything is waited for.
    """
    taken = _take(item.sku, item.quantity, "SKIP LOCKED")
    if taken < item.quantity:
        left = taken + stock.on_hand(item.sku)
        if left < item.quantity:
            raise SoldOut(item.sku, wanted=item.quantity, left=left)
        raise TooFewFree


def take_all(item: RequestItem, pool: int) -> int:
    """Take units, after waiting for those who hold them, and what is missing from the pool.

    Args:
        pool: units in the stock row, which is locked: meanwhile nothing moves between the pool and the rows.

    Returns:
        Units left in the pool.

    Raises:
        SoldOut: there are not enough.
        StockElsewhere: there are, but the sale is over and the next one has split them in its own way.
    """
    taken = _take(item.sku, item.quantity, "")
    missing = item.quantity - taken
    if missing > pool:
        raise stock.short(item.sku, wanted=item.quantity, left=taken + stock.on_hand(item.sku))
    if missing:
        stock.take(item.sku, missing)
    return pool - missing


def split(sku: str, units: int) -> None:
    """Make units of the pool rows of their own, unless the sku is another sale's by now. The stock row is locked."""
    if units and StockItem.objects.filter(sku=sku, on_hand__gte=units, split_by=NAME).update(
        on_hand=F("on_hand") - units, version=F("version") + 1
    ):
        with connection.cursor() as cursor:
            cursor.execute(SPLIT, [sku, units])


def _take(sku: str, units: int, locked: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(TAKE.format(locked=locked), [sku, units])
        taken: int = cursor.rowcount
    return taken
