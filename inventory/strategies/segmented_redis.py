"""`segmented-redis`: the stock in N keys of Redis with a lock each; then Postgres decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.db import transaction
from redis import RedisError

from inventory import stock
from inventory.counters.segmented import SegmentCounters, name_of
from inventory.errors import SoldOut, StockElsewhere, StockNotLoaded, StockReserved
from inventory.requests import OrderRequest, Save, Saved
from inventory.strategies.lua import agree, decide
from inventory.strategies.segmented import Held, Moved, Segmented


class SegmentedRedis(Segmented):
    """Lock a key, check and decrement it, noting whose units they are; save in Postgres, commit, unlock.

    As with `lua`, Redis admits and the guarded update decides; so a holder who was overtaken needs no fence here. Who
    finds enough in all keys but in none alone locks them all and spreads the units again, so that one key covers him.

    Args:
        counters: the segments in Redis; called when they are needed, so that nothing connects at import.
    """

    name = "segmented-redis"

    def __init__(self, counters: Callable[[], SegmentCounters], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counters = counters

    def look(self, sku: str) -> dict[int, int]:
        return dict(enumerate(self._units(sku)[0]))

    def left(self, sku: str) -> int:
        """What is reserved counts as well: it comes back when its order fails, and until then its lock is held."""
        units, reserved = self._units(sku)
        agree(sku, sum(units) + reserved)
        return max(0, sum(units) + reserved)

    def _units(self, sku: str) -> tuple[Sequence[int], int]:
        found = self.counters().segments(sku, self.segments)
        if found is None:
            raise StockNotLoaded(f"{sku} has no counters in Redis: preheat its sale.")
        return found

    def sell(self, order: OrderRequest, held: Sequence[Held], save: Save) -> None:
        counters = self.counters()
        for each in held:
            if each.number is None:
                left = counters.gather(each.item.sku, len(each.leases), self.segments, each.item.quantity)
                if left is None:
                    raise Moved(each.item.sku)
                if left < each.item.quantity:
                    # Nobody else has a lock, so what is still reserved is of somebody who died or was overtaken.
                    left = self.left(each.item.sku)
                    if left >= each.item.quantity:
                        raise StockReserved(each.item.sku)
                    raise SoldOut(each.item.sku, wanted=each.item.quantity, left=left)
        items = [replace(each.item, sku=name_of(each.item.sku, each.number or 0)) for each in held]
        taken = replace(order, items=tuple(items))
        try:
            counters.take(taken)
        except (SoldOut, StockReserved) as moved:
            raise Moved(moved.sku.partition("\0")[0]) from moved
        except StockNotLoaded as missing:
            raise StockNotLoaded("A segment has no counter in Redis: preheat its sale.") from missing
        try:
            decide(order, taken.skus, counters, save)
        except (SoldOut, StockElsewhere) as error:
            # Redis has admitted what is not there: it has lost its last second. The next buyer finds no counter; or, if
            # it does not answer now, is refused like this one.
            with suppress(RedisError):
                counters.unload_segments([error.sku])
            raise

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        self._load(skus, saved, make=True)

    def unload(self, skus: Sequence[str]) -> None:
        self.counters().unload_segments(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        # Who has none locks no row for it: another strategy's buyers wait there.
        split = [sku for sku in skus if self.counters().segments(sku, self.segments)]
        return self._load(split, saved, make=False) if split else {}

    def _load(self, skus: Sequence[str], saved: Saved, *, make: bool) -> Mapping[str, int]:
        counters, changes = self.counters(), {}
        with transaction.atomic():
            # While the rows are locked no order of these skus is committed, so what is noted is either an order by now
            # or still on its way.
            on_hand = stock.lock(skus)
            committed = saved(counters.requests())
            for sku in skus:
                changes[sku] = counters.load_segments(sku, self.segments, on_hand.get(sku, 0), committed, make=make)
                self.forget(sku)
        return {sku: change for sku, change in changes.items() if change is not None}
