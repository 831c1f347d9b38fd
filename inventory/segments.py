"""The stock of a sku in several rows: what is in its segments and in its pool, moved from one to the other."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F

from inventory.models import StockItem, StockSegment


def locked(sku: str) -> tuple[StockItem | None, list[StockSegment]]:
    """The rows of a sku, locked in the order in which everybody locks them: the item, then its segments."""
    item = StockItem.objects.select_for_update().filter(sku=sku).first()
    return item, list(StockSegment.objects.select_for_update().filter(item=sku).order_by("number"))


def units(item: StockItem, segments: Sequence[StockSegment]) -> int:
    """What is in the pool and in the segments together."""
    return item.on_hand + sum(segment.on_hand for segment in segments)


def rebalance(item: StockItem, segments: Sequence[StockSegment], units: int, over: int) -> None:
    """Write so many units evenly over the first segments of a sku, or, over none, into its pool.

    The rows are `locked` in the open transaction: what they had is the caller's to account for. A segment that is not
    needed any more is left with nothing, and its row stays, for it remembers the fence.
    """
    rows = {segment.number: segment for segment in segments}
    for number in range(over):
        rows.setdefault(number, StockSegment(item=item, number=number))
    for number, row in rows.items():
        row.on_hand = units // over + (number < units % over) if number < over else 0
    StockItem.objects.filter(sku=item.sku).update(on_hand=0 if over else units, version=F("version") + 1)
    StockSegment.objects.bulk_create(
        [StockSegment(item=item, number=n, on_hand=row.on_hand, fence=row.fence) for n, row in sorted(rows.items())],
        update_conflicts=True,
        unique_fields=["item", "number"],
        update_fields=["on_hand", "fence"],
    )
