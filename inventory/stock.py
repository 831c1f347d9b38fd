"""The guarded writes of stock: the only code that changes what is on hand."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import F

from inventory.draft import Line
from inventory.errors import SoldOut
from inventory.models import StockItem


def take(line: Line) -> None:
    """Subtract a line in the open transaction, if there is enough.

    The test and the subtraction are one statement, so no other writer can come between them.

    Raises:
        SoldOut: fewer units are on hand than the line wants; nothing was changed.
    """
    changed = StockItem.objects.filter(sku=line.sku, on_hand__gte=line.quantity).update(
        on_hand=F("on_hand") - line.quantity, version=F("version") + 1
    )
    if not changed:
        raise SoldOut(line.sku, wanted=line.quantity, left=on_hand(line.sku))


def on_hand(sku: str) -> int:
    """Units of a sku that can still be sold; 0 for a sku that was never received."""
    return StockItem.objects.filter(sku=sku).values_list("on_hand", flat=True).first() or 0


def give_back(quantities: Iterable[tuple[str, int]]) -> None:
    """Add units again in the open transaction: an order was cancelled or has expired.

    Args:
        quantities: pairs of sku and units.
    """
    for sku, quantity in sorted(quantities):
        StockItem.objects.filter(sku=sku).update(on_hand=F("on_hand") + quantity, version=F("version") + 1)


def deliver(sku: str, quantity: int) -> None:
    """Receive units of a sku, whether or not the sku is known yet.

    Args:
        quantity: units, at least 1.
    """
    if quantity < 1:
        raise ValueError(f"A delivery needs at least one unit, not {quantity}.")
    _, created = StockItem.objects.get_or_create(sku=sku, defaults={"received": quantity, "on_hand": quantity})
    if not created:
        StockItem.objects.filter(sku=sku).update(
            received=F("received") + quantity, on_hand=F("on_hand") + quantity, version=F("version") + 1
        )
