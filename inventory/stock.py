"""The guarded writes of stock: the only code that changes what is on hand, beside the strategies that split it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from django.db import connection, transaction
from django.db.models import Count, F, OuterRef, Subquery, Sum
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce
from django.db.transaction import TransactionManagementError

from inventory import segments
from inventory.errors import NotThatMany, SoldOut, StockElsewhere
from inventory.models import StockItem, StockMovement, StockSegment, StockUnit
from inventory.requests import RequestItem

# Written out, since every order needs them and others wait meanwhile: to compose such a statement takes the ORM about
# as long as Postgres takes to do what it says.
TAKE = """
    UPDATE inventory_stockitem
       SET on_hand = on_hand - %(units)s, version = version + 1
     WHERE sku = %(sku)s AND on_hand >= %(units)s
"""
LOCK = """
    SELECT sku, on_hand FROM inventory_stockitem WHERE sku = ANY(%(skus)s) ORDER BY sku COLLATE "C" FOR NO KEY UPDATE
"""


def all_on_hand() -> CombinedExpression:
    """What is on hand of a `StockItem` altogether: in its own row, in its segments and in its unit rows."""
    split = StockSegment.objects.filter(item=OuterRef("pk")).order_by().values("item").annotate(sum=Sum("on_hand"))
    units = StockUnit.objects.filter(item=OuterRef("pk")).order_by().values("item").annotate(count=Count("pk"))
    return F("on_hand") + Coalesce(Subquery(split.values("sum")), 0) + Coalesce(Subquery(units.values("count")), 0)


def take(sku: str, units: int) -> None:
    """Subtract units of a sku in the open transaction, if there are as many.

    The test and the subtraction are one statement, so no other writer can come between them.

    Raises:
        SoldOut, StockElsewhere: the pool has fewer, see `short`; nothing was changed.
    """
    with connection.cursor() as cursor:
        cursor.execute(TAKE, {"sku": sku, "units": units})
        changed = cursor.rowcount
    if not changed:
        raise short(sku, wanted=units, left=on_hand(sku))


def short(sku: str, *, wanted: int, left: int) -> SoldOut | StockElsewhere:
    """Why the pool of a sku does not cover what is wanted: so many are not left, or they are not in the pool.

    Args:
        left: units on hand altogether, read after the pool.
    """
    if left < wanted:
        return SoldOut(sku, wanted=wanted, left=left)
    return StockElsewhere(sku)


def take_from_all(item: RequestItem) -> None:
    """Subtract a item in the open transaction, from segments and unit rows too if the pool has too little. See `take`.

    For who does not know how the sku is sold now. Called for several skus in their order.
    """
    try:
        take(item.sku, item.quantity)
    except StockElsewhere:
        gather(item.sku, item.quantity)
        take(item.sku, item.quantity)


def lock(skus: Collection[str]) -> dict[str, int]:
    """Lock the rows of skus until the open transaction ends, and say what their pools have.

    In the order in which Python sorts skus, whatever order the database gives to texts: every writer of several rows
    keeps to it, so that no two wait for each other. Keys stay unlocked, since segments and unit rows refer to them.

    Raises:
        TransactionManagementError: no transaction is open, so that they would be free again at once.
    """
    if not skus:
        return {}
    if not connection.in_atomic_block:
        raise TransactionManagementError("Rows are locked until the transaction ends: open one.")
    with connection.cursor() as cursor:
        cursor.execute(LOCK, {"skus": list(skus)})
        return dict(cursor.fetchall())


def pools(skus: Collection[str]) -> dict[str, int]:
    """Units of each sku that are in no segment and no unit row."""
    return dict(StockItem.objects.filter(sku__in=skus).values_list("sku", "on_hand"))


def check(items: Iterable[RequestItem], pools: Mapping[str, int]) -> None:
    """Compare items with what the pools have.

    Raises:
        SoldOut, StockElsewhere: a pool has fewer units than a item wants, see `short`.
    """
    for item in items:
        if pools.get(item.sku, 0) < item.quantity:
            raise short(item.sku, wanted=item.quantity, left=on_hand(item.sku))


def on_hand(sku: str) -> int:
    """Units of a sku that can still be sold; 0 for a sku that was never received."""
    return StockItem.objects.filter(sku=sku).values_list(all_on_hand(), flat=True).first() or 0


def gather(sku: str, wanted: int) -> None:
    """Move the segments and unit rows of a sku into its pool, in the open transaction, if that has less than is wanted.

    Whoever sells from them splits the pool again when he finds them empty.
    """
    item, split = segments.locked(sku)
    if item is not None and item.on_hand < wanted:
        rows, _ = StockUnit.objects.filter(item=sku).delete()
        segments.rebalance(item, split, segments.units(item, split) + rows, 0)


def give_back(quantities: Iterable[tuple[str, int]]) -> None:
    """Add units again in the open transaction: an order was cancelled or has expired.

    Args:
        quantities: pairs of sku and units.
    """
    for sku, quantity in sorted(quantities):
        StockItem.objects.filter(sku=sku).update(on_hand=F("on_hand") + quantity, version=F("version") + 1)


def move(sku: str, kind: StockMovement.Kind, units: int, *, who: int | None = None, why: str = "") -> None:
    """Change what was received of a sku, and with it what is on hand, whether or not the sku is known yet.

    Args:
        units: that came; negative, in a correction, for units that turned out not to be there.
        who: the id of the person who says so; None for a program.
        why: in their words.

    Raises:
        NotThatMany: a correction takes away more than is on hand; nothing was changed.
    """
    with transaction.atomic():
        made = False
        if units > 0:
            _, made = StockItem.objects.get_or_create(sku=sku, defaults={"received": units, "on_hand": units})
        else:
            gather(sku, -units)
        if not made and not StockItem.objects.filter(sku=sku, on_hand__gte=-units).update(
            received=F("received") + units, on_hand=F("on_hand") + units, version=F("version") + 1
        ):
            raise NotThatMany(sku, wanted=-units, left=on_hand(sku))
        StockMovement.objects.create(item_id=sku, kind=kind, units=units, who_id=who, why=why)


def deliver(sku: str, units: int, *, who: int | None = None, why: str = "") -> None:
    """Receive units of a sku. See `move`.

    Args:
        units: at least 1.
    """
    if units < 1:
        raise ValueError(f"A delivery needs at least one unit, not {units}.")
    move(sku, StockMovement.Kind.DELIVERED, units, who=who, why=why)
