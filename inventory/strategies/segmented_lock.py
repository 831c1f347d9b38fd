"""`segmented-lock`: the stock in N rows of Postgres with a lock each. N orders of one sku can run in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db import connection, transaction

from inventory import stock
from inventory.errors import SoldOut, StockBusy
from inventory.models import StockItem, StockSegment
from inventory.requests import OrderRequest, RequestItem, Save, Saved, save_one
from inventory.segments import lock_rows, rebalance, total_units
from inventory.strategies.segmented import HeldItem, Segmented, SegmentsChanged
from locking import Lease

CLAIM = """
    UPDATE inventory_stocksegment
       SET on_hand = on_hand - %(quantity)s, fence = %(fence)s
     WHERE sku = %(sku)s AND number = %(number)s AND fence < %(fence)s AND on_hand >= %(quantity)s
"""


class SegmentedLock(Segmented):
    """Use one of N segments as `redis-lock` uses the stock row: lock, check, decrement, save, commit, unlock.

    Guarantees: those of `redis-lock` for each segment, including fencing tokens. "Sold out" is answered only after all
    units of the sku were added up, by one statement or with all rows locked. If no single segment has enough units, the
    order locks all segments, takes its units from the total, and rebalances the rest.
    Costs: up to N locks and N rows for the last units. An order always needs several statements in a transaction, where
    `redis-lock` may need one.
    Choose it: when `redis-lock` is right, but one lock for a sku is too slow.
    """

    name = "segmented-lock"

    def segment_units(self, sku: str) -> dict[int, int]:
        return dict(StockSegment.objects.filter(item=sku).values_list("number", "on_hand"))

    def units_left(self, sku: str) -> int:
        return stock.on_hand(sku)

    def sell(self, order: OrderRequest, held: Sequence[HeldItem], save: Save) -> None:
        # Commit before the caller releases the locks. Otherwise the next holder reads old stock.
        with transaction.atomic(durable=True):
            # Lock stock rows before segments, as preheating and unloading do. The reverse order could deadlock.
            stock.lock([each.item.sku for each in held if each.number is None])
            for each in held:
                if each.number is None:
                    take_and_rebalance(each.item, each.leases, self.segments)
                else:
                    check_and_decrement(each.item, each.number, each.leases[each.number])
            save_one(order, save)

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        self._split(skus, self.segments)

    def unload(self, skus: Sequence[str]) -> None:
        self._split(skus, 0)

    def _split(self, skus: Sequence[str], segment_count: int) -> None:
        # Row locks are enough, without locks in Redis: the guarded writes of orders wait for this commit.
        with transaction.atomic():
            for sku in sorted(skus):
                item, segments = lock_rows(sku)
                if item is not None and (segment_count or item.split_by == self.name):
                    rebalance(item, segments, total_units(item, segments), segment_count)
                    StockItem.objects.filter(sku=sku).update(split_by=self.name if segment_count else "")
        for sku in skus:
            self.forget(sku)


def check_and_decrement(item: RequestItem, number: int, lease: Lease) -> None:
    """Subtract an item from a segment in the open transaction. The caller holds the lock of the segment.

    Raises:
        SegmentsChanged: the segment has fewer units than the item wants.
        StockBusy: a later holder of the lock has written the row, so this lease has ended.
    """
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, {"sku": item.sku, "number": number, "quantity": item.quantity, "fence": fence_of(lease)})
        claimed = cursor.rowcount
    if not claimed:
        set_fences(StockSegment.objects.filter(item=item.sku, number=number), {number: lease})
        raise SegmentsChanged(item.sku)


def take_and_rebalance(item: RequestItem, leases: Mapping[int, Lease], segment_count: int) -> None:
    """Subtract an item from all units of its sku in the open transaction. The caller holds the locks of all segments.

    The remaining units are distributed evenly over the segments, except after the end of the sale.

    Raises:
        SoldOut: segments and unsplit stock together have fewer units than the item wants.
        SegmentsChanged: there are segments that did not exist when the locks were taken, or no stock row.
        StockBusy: a later holder of a segment's lock has written the segment's row.
    """
    stock_item, segments = lock_rows(item.sku)
    if stock_item is None or {segment.number for segment in segments} - leases.keys():
        raise SegmentsChanged(item.sku)
    set_fences(segments, leases)
    if stock_item.split_by != SegmentedLock.name:
        return stock.take_from_all(item)
    left = total_units(stock_item, segments)
    if left < item.quantity:
        raise SoldOut(item.sku, wanted=item.quantity, left=left)
    rebalance(stock_item, segments, left - item.quantity, segment_count)
    return None


def set_fences(segments: Iterable[StockSegment], leases: Mapping[int, Lease]) -> None:
    """Set the fence (fencing token) of each lease on its segment in memory; `rebalance` writes it to Postgres.

    Raises:
        StockBusy: a segment has a later fence, so a later holder has written it.
    """
    for segment in segments:
        fence = fence_of(leases[segment.number])
        if segment.fence >= fence:
            raise StockBusy(f"{segment}: fence {fence} was overtaken by a later holder of the lock. Try again.")
        segment.fence = fence


def fence_of(lease: Lease) -> int:
    if lease.fence is None:
        raise ValueError("This strategy needs a lock that gives a fence.")
    return lease.fence
