"""`segmented-lock`: the stock in N rows with a lock each, so that the buyers of one sku wait in N items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db import connection, transaction

from inventory import stock
from inventory.errors import SoldOut, StockBusy
from inventory.models import StockItem, StockSegment
from inventory.requests import OrderRequest, RequestItem, Save, Saved, save_one
from inventory.segments import locked, rebalance, units
from inventory.strategies.segmented import Held, Moved, Segmented
from locking import Lease

CLAIM = """
    UPDATE inventory_stocksegment
       SET on_hand = on_hand - %(quantity)s, fence = %(fence)s
     WHERE sku = %(sku)s AND number = %(number)s AND fence < %(fence)s AND on_hand >= %(quantity)s
"""


class SegmentedLock(Segmented):
    """`redis-lock`, N times: lock a segment, check, decrement, save, commit, unlock.

    Nobody is told "sold out" before segments and pool were counted together. Who finds enough in all of them but in
    none alone gathers: he locks them all, takes his units from the total, and spreads the rest evenly again.
    """

    name = "segmented-lock"

    def look(self, sku: str) -> dict[int, int]:
        return dict(StockSegment.objects.filter(item=sku).values_list("number", "on_hand"))

    def left(self, sku: str) -> int:
        return stock.on_hand(sku)

    def sell(self, order: OrderRequest, held: Sequence[Held], save: Save) -> None:
        # The commit comes before the leases are let go.
        with transaction.atomic(durable=True):
            # Before any segment, as whoever preheats the sale or ends it has all of them, and waits for segments then.
            stock.lock([each.item.sku for each in held if each.number is None])
            for each in held:
                if each.number is None:
                    gather(each.item, each.leases, self.segments)
                else:
                    check_and_decrement(each.item, each.number, each.leases[each.number])
            save_one(order, save)

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        self._spread(skus, self.segments)

    def unload(self, skus: Sequence[str]) -> None:
        self._spread(skus, 0)

    def _spread(self, skus: Sequence[str], over: int) -> None:
        # Under no lock but the rows': every write of a buyer is relative and guarded, and waits for this commit.
        with transaction.atomic():
            for sku in sorted(skus):
                item, segments = locked(sku)
                if item is not None and (over or item.split_by == self.name):
                    rebalance(item, segments, units(item, segments), over)
                    StockItem.objects.filter(sku=sku).update(split_by=self.name if over else "")
        for sku in skus:
            self.forget(sku)


def check_and_decrement(item: RequestItem, number: int, lease: Lease) -> None:
    """Subtract a item from a segment in the open transaction, as the holder of its lock.

    Raises:
        Moved: the segment has fewer units than the item wants.
        StockBusy: a later holder has been here, so this lease is over, whatever its clock says.
    """
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, {"sku": item.sku, "number": number, "quantity": item.quantity, "fence": fence_of(lease)})
        claimed = cursor.rowcount
    if not claimed:
        claim_all(StockSegment.objects.filter(item=item.sku, number=number), {number: lease})
        raise Moved(item.sku)


def gather(item: RequestItem, leases: Mapping[int, Lease], over: int) -> None:
    """Subtract a item from all that there is in the open transaction, as the holder of every lock; spread the rest.

    Not if the sale was over meanwhile: the rest stays where every strategy finds it.

    Raises:
        SoldOut: segments and pool together have fewer units than the item wants.
        Moved: there are segments that were not there before the locks were taken.
        StockBusy: a later holder has been at one of the segments.
    """
    stock_item, segments = locked(item.sku)
    if stock_item is None or {segment.number for segment in segments} - leases.keys():
        raise Moved(item.sku)
    claim_all(segments, leases)
    if stock_item.split_by != SegmentedLock.name:
        return stock.take_from_all(item)
    left = units(stock_item, segments)
    if left < item.quantity:
        raise SoldOut(item.sku, wanted=item.quantity, left=left)
    rebalance(stock_item, segments, left - item.quantity, over)
    return None


def claim_all(segments: Iterable[StockSegment], leases: Mapping[int, Lease]) -> None:
    """Put the leases' fences into the segments that were read; whoever writes them writes those too."""
    for segment in segments:
        fence = fence_of(leases[segment.number])
        if segment.fence >= fence:
            raise StockBusy(f"{segment}: fence {fence} was overtaken by a later holder of the lock.")
        segment.fence = fence


def fence_of(lease: Lease) -> int:
    if lease.fence is None:
        raise ValueError("This strategy needs a lock that gives a fence.")
    return lease.fence
