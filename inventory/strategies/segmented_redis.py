"""`segmented-redis`: the stock of a sku in N counters of Redis with a lock each; then Postgres decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.db import transaction
from redis import RedisError

from inventory import stock
from inventory.counters.segmented import SegmentCounters, segment_name
from inventory.counters.whole import UNENDED, Unended
from inventory.errors import SoldOut, StockElsewhere, StockNotLoaded, StockReserved
from inventory.requests import OrderRequest, Placement, Save, Saved
from inventory.strategies.lua import leave_ended_session, save_admitted, verify_sold_out
from inventory.strategies.segmented import HeldItem, Segmented, SegmentsChanged


class SegmentedRedis(Segmented):
    """Lock a segment, check and decrement its counter, and reserve the units; save in Postgres, commit, unlock.

    Guarantees: those of `lua`. Redis admits and the guarded UPDATE decides, so a lease that has expired does no harm,
    and no fencing token is checked. If no single segment has enough units, the order locks all segments, and rebalances
    the counters so that one segment has enough.
    Costs: the locks of `segmented-lock` and the round trips of `lua`. Orders that Redis admits still wait for the one
    stock row.
    Choose it: to compare it with `lua`, whose script does the same without a lock and in fewer round trips.

    Args:
        counters: returns the segments' counters in Redis. Called for each order, so that nothing connects at import.
    """

    name = "segmented-redis"

    def __init__(self, counters: Callable[[], SegmentCounters], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unended: Unended = deque(maxlen=UNENDED)
        self._make_counters = counters

    def counters(self) -> SegmentCounters:
        """Return the counters, with the list of reservations that this process has to end again."""
        counters = self._make_counters()
        counters.unended = self.unended
        return counters

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        self.counters().end_again()
        leave_ended_session()
        return super()._place(order, save)

    def segment_units(self, sku: str) -> dict[int, int]:
        return dict(enumerate(self._read(sku)[0]))

    def units_left(self, sku: str) -> int:
        """Return the units in the counters plus the reserved units, which come back if their orders fail."""
        units, reserved = self._read(sku)
        left = max(0, sum(units) + reserved)
        verify_sold_out(sku, left)
        return left

    def _read(self, sku: str) -> tuple[Sequence[int], int]:
        found = self.counters().segments(sku, self.segments)
        if found is None:
            raise StockNotLoaded(f"{sku} has no counters in Redis: preheat its sale.")
        return found

    def sell(self, order: OrderRequest, held: Sequence[HeldItem], save: Save) -> None:
        counters = self.counters()
        for each in held:
            if each.number is None:
                left = counters.rebalance(each.item.sku, len(each.leases), self.segments, each.item.quantity)
                if left is None:
                    raise SegmentsChanged(each.item.sku)
                if left < each.item.quantity:
                    # All segments are locked: units still reserved belong to processes that died or lost their lease.
                    left = self.units_left(each.item.sku)
                    if left >= each.item.quantity:
                        raise StockReserved(each.item.sku)
                    raise SoldOut(each.item.sku, wanted=each.item.quantity, left=left)
        items = [replace(each.item, sku=segment_name(each.item.sku, each.number or 0)) for each in held]
        taken = replace(order, items=tuple(items))
        try:
            counters.take(taken)
        except (SoldOut, StockReserved) as changed:
            raise SegmentsChanged(changed.sku.partition("\0")[0]) from changed
        except StockNotLoaded as missing:
            raise StockNotLoaded("A segment has no counter in Redis: preheat its sale.") from missing
        try:
            save_admitted(order, taken.skus, counters, save)
        except (SoldOut, StockElsewhere) as error:
            # Postgres refused units that Redis had admitted: the counters are wrong. Delete them, as `lua` does.
            with suppress(RedisError):
                counters.unload_segments([error.sku])
            raise

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        self._load(skus, saved, make=True)

    def unload(self, skus: Sequence[str]) -> None:
        self.counters().unload_segments(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        # Lock no row of a sku without segments: another strategy may sell it, and its orders would wait for the row.
        split = [sku for sku in skus if self.counters().segments(sku, self.segments)]
        return self._load(split, saved, make=False) if split else {}

    def _load(self, skus: Sequence[str], saved: Saved, *, make: bool) -> Mapping[str, int]:
        counters, changes = self.counters(), {}
        with transaction.atomic():
            # The row locks keep orders from committing. Each reserved order is in `committed`, or is not saved yet.
            on_hand = stock.lock(skus)
            committed = saved(counters.order_ids())
            for sku in skus:
                changes[sku] = counters.load_segments(sku, self.segments, on_hand.get(sku, 0), committed, make=make)
                self.forget(sku)
        return {sku: change for sku, change in changes.items() if change is not None}
