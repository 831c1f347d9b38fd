"""Segments in Postgres: lock their rows, and move units between them and the unsplit stock.

A segment is a part of a sku's stock with its own row. Unsplit stock is the units in the sku's stock row.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F

from inventory.models import StockItem, StockSegment


def lock_rows(sku: str) -> tuple[StockItem | None, list[StockSegment]]:
    """Lock and return the stock row of a sku, then its segments by number. This fixed order prevents deadlocks."""
    item = StockItem.objects.select_for_update().filter(sku=sku).first()
    return item, list(StockSegment.objects.select_for_update().filter(item=sku).order_by("number"))


def total_units(item: StockItem, segments: Sequence[StockSegment]) -> int:
    """Return the sum of the units in the stock row and in all segments of a sku."""
    return item.on_hand + sum(segment.on_hand for segment in segments)


def rebalance(item: StockItem, segments: Sequence[StockSegment], units: int, segment_count: int) -> None:
    """Distribute units evenly over the segments 0 to `segment_count` - 1 of a sku.

    If `segment_count` is 0, put all units into the stock row.

    Call it only after `lock_rows` has locked the rows: it overwrites their units. A segment that is no longer needed
    keeps a row with 0 units, because the row stores the fencing token of the last lock grant.
    """
    rows = {segment.number: segment for segment in segments}
    for number in range(segment_count):
        rows.setdefault(number, StockSegment(item=item, number=number))
    for number, row in rows.items():
        in_use = number < segment_count
        row.on_hand = units // segment_count + (number < units % segment_count) if in_use else 0
    StockItem.objects.filter(sku=item.sku).update(on_hand=0 if segment_count else units, version=F("version") + 1)
    StockSegment.objects.bulk_create(
        [StockSegment(item=item, number=n, on_hand=row.on_hand, fence=row.fence) for n, row in sorted(rows.items())],
        update_conflicts=True,
        unique_fields=["item", "number"],
        update_fields=["on_hand", "fence"],
    )
