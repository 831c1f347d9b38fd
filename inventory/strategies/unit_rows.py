"""`unit-rows`: every unit is a row of its own; an order deletes rows that no other order has locked."""

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

# ARRAY(...) is evaluated once. IN (...) could be evaluated for each row again, and lock other units each time.
TAKE = """
    DELETE FROM inventory_stockunit
     WHERE id = ANY (ARRAY(SELECT id FROM inventory_stockunit WHERE sku = %s LIMIT %s FOR UPDATE {locked}))
"""
SPLIT = "INSERT INTO inventory_stockunit (sku) SELECT %s FROM generate_series(1, %s)"


class UnitRows(Strategy):
    """Select unlocked unit rows with `FOR UPDATE SKIP LOCKED` and delete them, so orders of one sku do not wait.

    Guarantees: a row is deleted once, so no unit is sold twice. If too few rows are unlocked, the sku may still have
    units: locked units come back if their orders fail, and some units may not be split into rows yet. So the first
    transaction is rolled back, and a second transaction waits for the locked rows. Without the rollback, two orders
    that hold unit rows and wait for each other's rows would deadlock. The second transaction locks the stock rows of
    the whole order before any unit.
    Costs: a row for each unit, to insert and to delete, and the second transaction when stock runs low.
    Choose it: for a few thousand units that many customers buy at the same time, or when each unit differs, as seats
    do.

    Args:
        rows: units of a sku that are split into rows at a time. The other units stay in the stock row until these rows
            are used up.
    """

    name = NAME

    def __init__(self, *, rows: int = 1000) -> None:
        self.rows = rows

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        try:
            with transaction.atomic(durable=True):
                for item in order.items:
                    take_unlocked(item)
                save_one(order, save)
        except TooFewUnlocked:
            with transaction.atomic(durable=True):
                unsplit = stock.lock(order.skus)
                for item in order.items:
                    left = take_waiting(item, unsplit.get(item.sku, 0))
                    split(item.sku, min(left, self.rows))
                save_one(order, save)
        return Placement.COMMITTED

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        with transaction.atomic():
            unsplit = stock.lock(skus)
            StockItem.objects.filter(sku__in=unsplit).update(split_by=NAME)
            for sku, units in unsplit.items():
                split(sku, min(units, self.rows))

    def unload(self, skus: Sequence[str]) -> None:
        with transaction.atomic():
            for sku in stock.lock(skus):
                units, _ = StockUnit.objects.filter(item=sku).delete()
                if units:
                    stock.give_back([(sku, units)])
            StockItem.objects.filter(sku__in=skus, split_by=NAME).update(split_by="")


class TooFewUnlocked(Exception):
    """Too few unit rows are unlocked: other orders have locked the other rows, or units are not split into rows yet."""


def take_unlocked(item: RequestItem) -> None:
    """Take units that no other order has locked, in the open transaction, without waiting.

    Raises:
        SoldOut: too few units are left, even with the units that other orders have locked.
        TooFewUnlocked: enough units may be left. Roll back, and wait for them in a new transaction.
    """
    taken = _take(item.sku, item.quantity, "SKIP LOCKED")
    if taken < item.quantity:
        left = taken + stock.on_hand(item.sku)
        if left < item.quantity:
            raise SoldOut(item.sku, wanted=item.quantity, left=left)
        raise TooFewUnlocked


def take_waiting(item: RequestItem, unsplit: int) -> int:
    """Take unit rows in the open transaction, after waiting for orders that have locked them; then take unsplit units.

    Args:
        unsplit: units in the stock row. The caller has locked it, so that no units are split or merged meanwhile.

    Returns:
        Unsplit units that are left.

    Raises:
        SoldOut: there are too few units.
        StockElsewhere: there are enough units, but this sale has ended and the next sale has split them in another way.
    """
    taken = _take(item.sku, item.quantity, "")
    missing = item.quantity - taken
    if missing > unsplit:
        raise stock.shortage_error(item.sku, wanted=item.quantity, left=taken + stock.on_hand(item.sku))
    if missing:
        stock.take(item.sku, missing)
    return unsplit - missing


def split(sku: str, units: int) -> None:
    """Move units from the locked stock row to unit rows. Do nothing if another sale has split the sku meanwhile."""
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
