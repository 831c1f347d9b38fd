"""Reads, row locks and guarded writes of stock in Postgres, shared by the strategies.

The units of a sku are its unsplit stock, which is in its `StockItem` row, plus those in its segments and unit rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from django.db import connection, transaction
from django.db.models import Count, F, OuterRef, Subquery, Sum
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce
from django.db.transaction import TransactionManagementError

from inventory import segments
from inventory.errors import CorrectionTooLarge, SoldOut, StockElsewhere
from inventory.models import StockItem, StockMovement, StockSegment, StockUnit
from inventory.requests import RequestItem, Taking

# Use plain SQL: other orders wait for the row lock while these statements run. To compose them with the ORM takes about
# as long as Postgres takes to run them.
TAKE = """
    UPDATE inventory_stockitem
       SET on_hand = on_hand - %(units)s, version = version + 1
     WHERE sku = %(sku)s AND on_hand >= %(units)s
"""
# Lock rows in sorted order as `lock` does, to avoid deadlocks; then test and change their newest versions.
TAKE_ALL = """
    WITH wanted AS (
        SELECT sku, units FROM unnest(%(skus)s::text[], %(units)s::int[]) AS wanted (sku, units)
    ), locked AS (
        SELECT item.sku, units
          FROM inventory_stockitem AS item JOIN wanted USING (sku)
         ORDER BY item.sku COLLATE "C"
           FOR NO KEY UPDATE OF item
    )
    UPDATE inventory_stockitem AS item
       SET on_hand = on_hand - units, version = version + 1
      FROM locked
     WHERE item.sku = locked.sku AND on_hand >= units
"""
LOCK = """
    SELECT sku, on_hand FROM inventory_stockitem WHERE sku = ANY(%(skus)s) ORDER BY sku COLLATE "C" FOR NO KEY UPDATE
"""


def all_on_hand() -> CombinedExpression:
    """Return a query expression for all units on hand of a `StockItem`: unsplit, in segments and in unit rows."""
    split = StockSegment.objects.filter(item=OuterRef("pk")).order_by().values("item").annotate(sum=Sum("on_hand"))
    units = StockUnit.objects.filter(item=OuterRef("pk")).order_by().values("item").annotate(count=Count("pk"))
    return F("on_hand") + Coalesce(Subquery(split.values("sum")), 0) + Coalesce(Subquery(units.values("count")), 0)


def on_hand(sku: str) -> int:
    """Return all units of a sku that can still be sold; 0 for a sku that was never received."""
    return StockItem.objects.filter(sku=sku).values_list(all_on_hand(), flat=True).first() or 0


def unsplit(skus: Collection[str]) -> dict[str, int]:
    """Return the unsplit units of each sku: those in no segment and no unit row."""
    return dict(StockItem.objects.filter(sku__in=skus).values_list("sku", "on_hand"))


def take(sku: str, units: int) -> None:
    """Subtract units from the unsplit stock of a sku in the open transaction.

    One statement tests and subtracts, so no other writer can come between the two.

    Raises:
        SoldOut, StockElsewhere: the stock row has too few units, see `shortage_error`; nothing was changed.
    """
    with connection.cursor() as cursor:
        cursor.execute(TAKE, {"sku": sku, "units": units})
        changed = cursor.rowcount
    if not changed:
        raise shortage_error(sku, wanted=units, left=on_hand(sku))


def take_all(units: Mapping[str, int]) -> None:
    """Subtract units from the unsplit stock of several skus in the open transaction, in one statement.

    Args:
        units: units by sku.

    Raises:
        SoldOut, StockElsewhere: the stock row of a sku has too few units, see `shortage_error`. Other skus may have
            been changed, so the caller must roll back.
    """
    if len(units) == 1:
        return take(*next(iter(units.items())))
    with connection.cursor() as cursor:
        cursor.execute(f"{TAKE_ALL} RETURNING item.sku", {"skus": list(units), "units": list(units.values())})
        taken = {sku for (sku,) in cursor.fetchall()}
    for sku in sorted(units.keys() - taken):
        raise shortage_error(sku, wanted=units[sku], left=on_hand(sku))
    return None


def taking(units: Mapping[str, int]) -> Taking:
    """Return the UPDATE of `take_all`, for `save_at_once`.

    Args:
        units: units by sku.
    """
    if len(units) == 1:
        ((sku, quantity),) = units.items()
        return Taking(TAKE, {"sku": sku, "units": quantity}, rows=1)
    return Taking(TAKE_ALL, {"skus": list(units), "units": list(units.values())}, rows=len(units))


def take_from_all(item: RequestItem) -> None:
    """Subtract an item in the open transaction, wherever its units are: in the stock row, segments or unit rows.

    Use it if the caller does not know which strategy has split the stock. Call it for several skus in sorted order, to
    avoid deadlocks. It raises the same errors as `take`.
    """
    try:
        take(item.sku, item.quantity)
    except StockElsewhere:
        merge(item.sku, item.quantity)
        take(item.sku, item.quantity)


def check(items: Iterable[RequestItem], unsplit_units: Mapping[str, int]) -> None:
    """Check that the sku of each item has enough unsplit units.

    Raises:
        SoldOut, StockElsewhere: a sku has too few, see `shortage_error`.
    """
    for item in items:
        if unsplit_units.get(item.sku, 0) < item.quantity:
            raise shortage_error(item.sku, wanted=item.quantity, left=on_hand(item.sku))


def shortage_error(sku: str, *, wanted: int, left: int) -> SoldOut | StockElsewhere:
    """Return the error for a stock row with too few units: `SoldOut`, or `StockElsewhere` if enough units are split.

    Args:
        left: all units on hand, split or not, read after the row was found too small.
    """
    if left < wanted:
        return SoldOut(sku, wanted=wanted, left=left)
    return StockElsewhere(sku)


def lock(skus: Collection[str]) -> dict[str, int]:
    """Lock the stock rows of skus until the open transaction ends, and return their unsplit units.

    The rows are locked in the order in which Python sorts skus, independent of the database's collation. Every writer
    of several rows uses this order, so writers cannot deadlock. `NO KEY` lets other transactions insert segments and
    unit rows meanwhile.

    Raises:
        TransactionManagementError: no transaction is open, so the locks would be released immediately.
    """
    if not skus:
        return {}
    if not connection.in_atomic_block:
        raise TransactionManagementError("Row locks last until the transaction ends: open one first.")
    with connection.cursor() as cursor:
        cursor.execute(LOCK, {"skus": list(skus)})
        return dict(cursor.fetchall())


def merge(sku: str, wanted: int) -> None:
    """Move all segments and unit rows of a sku back to its stock row, if this row has fewer units than wanted.

    Runs in the open transaction. A strategy that sells from segments or unit rows splits the stock again when it finds
    them empty.
    """
    item, split = segments.lock_rows(sku)
    if item is not None and item.on_hand < wanted:
        rows, _ = StockUnit.objects.filter(item=sku).delete()
        segments.rebalance(item, split, segments.total_units(item, split) + rows, 0)


def give_back(quantities: Iterable[tuple[str, int]]) -> None:
    """Add units to the unsplit stock of skus in the open transaction.

    Args:
        quantities: pairs of sku and units.
    """
    for sku, quantity in sorted(quantities):
        StockItem.objects.filter(sku=sku).update(on_hand=F("on_hand") + quantity, version=F("version") + 1)


def move(sku: str, kind: StockMovement.Kind, units: int, *, who: int | None = None, why: str = "") -> None:
    """Add units to a sku's units received and on hand, and record who did it and why.

    Creates the sku if it is new.

    Args:
        units: units received; negative, in a correction, for units that turned out to be missing.
        who: the id of the user; None for a program.
        why: the reason, in the user's words.

    Raises:
        CorrectionTooLarge: a correction removes more units than are on hand; nothing was changed.
    """
    with transaction.atomic():
        created = False
        if units > 0:
            _, created = StockItem.objects.get_or_create(sku=sku, defaults={"received": units, "on_hand": units})
        else:
            merge(sku, -units)
        if not created and not StockItem.objects.filter(sku=sku, on_hand__gte=-units).update(
            received=F("received") + units, on_hand=F("on_hand") + units, version=F("version") + 1
        ):
            raise CorrectionTooLarge(sku, wanted=-units, left=on_hand(sku))
        StockMovement.objects.create(item_id=sku, kind=kind, units=units, who_id=who, why=why)


def deliver(sku: str, units: int, *, who: int | None = None, why: str = "") -> None:
    """Receive a delivery of units of a sku. The other arguments are those of `move`.

    Args:
        units: at least 1.
    """
    if units < 1:
        raise ValueError(f"A delivery needs at least one unit, not {units}.")
    move(sku, StockMovement.Kind.DELIVERED, units, who=who, why=why)
