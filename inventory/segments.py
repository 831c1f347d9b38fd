"""The segments of a sku in Postgres: locking their rows, and moving units between them and the unsplit stock."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F

from inventory.models import StockItem, StockSegment


def lock_rows(sku: str) -> tuple[StockItem | None, list[StockSegment]]:
    """Lock the rows of a sku in the order that prevents deadlocks: the item, then its segments by number."""
    item = StockItem.objects.select_for_update().filter(sku=sku).first()
    return item, list(StockSegment.objects.select_for_update().filter(item=sku).order_by("number"))


def total_units(item: StockItem, segments: Sequence[StockSegment]) -> int:
    """Return the unsplit units and those in the segments together."""
    return item.on_hand + sum(segment.on_hand for segment in segments)


def rebalance(item: StockItem, segments: Sequence[StockSegment], units: int, segment_count: int) -> None:
    """Distribute units evenly over the first segments of a sku. With 0 segments, make all units unsplit stock.

    The rows are locked by `lock_rows` in the open transaction; what they held before is overwritten. A segment that is
    no longer needed keeps its row with no units, because the row holds the last fence.
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
