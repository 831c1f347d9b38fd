"""Base of the two segmented strategies: choose the segment of a sku for an order, and hold its lock.

A segment is a part of a sku's stock with a lock of its own, so that several orders of the sku can run at the same time.
"""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from django.db import connection
from redis import RedisError

from inventory import observing
from inventory.errors import SoldOut, StockBusy, StockUnavailable
from inventory.requests import OrderRequest, Placement, RequestItem, Save
from inventory.strategies.base import Strategy
from locking import Lease, Lock, LockTimeout, LockUnavailable

CACHE_SECONDS = 2.0
"""Seconds for which a process caches the units of the segments. So new segments may stay unused for that long."""


@dataclass(frozen=True, slots=True)
class HeldItem:
    """An item of an order, and the leases of the segments that it is taken from.

    Args:
        number: the segment that has enough units for the item. None if no single segment has enough; then the order
            holds all segments.
        leases: the lease of each held segment, by segment number.
    """

    item: RequestItem
    number: int | None
    leases: Mapping[int, Lease]


class SegmentsChanged(Exception):
    """The segments of a sku changed after they were read: read them again."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"The segments of {sku} kept changing until the time was up. Try again.")
        self.sku = sku


class Segmented(Strategy):
    """One lock per segment. An order locks one segment of each sku, or all of them if no single one has enough units.

    Orders wait for locks in the order of sku and segment number. A waiting order holds no later lock, so orders cannot
    deadlock, even if one order needs all segments and another order only one segment.

    The cached units only choose the segment to try first. "Sold out" is never based on them.

    Args:
        make_lock: returns the lock of a sku's segment. It must give fencing tokens.
        wait: seconds that a customer waits for the locks of the whole order.
        segments: the number of segments that a sku is split into. It may change while a sale runs: the next preheat or
            rebalance applies it, and orders use every segment that has units.
        start: takes the sku and the number of segments that have enough units. It returns the index of the segment to
            try first. By default the segments take turns.
    """

    def __init__(
        self,
        make_lock: Callable[[str, int], Lock],
        *,
        wait: float,
        segments: int,
        start: Callable[[str, int], int] | None = None,
    ) -> None:
        if segments < 1:
            raise ValueError(f"A sku needs at least one segment, not {segments}.")
        self.make_lock = make_lock
        self.wait = wait
        self.segments = segments
        self.start = start or round_robin()
        self._cache: dict[str, tuple[float, dict[int, int]]] = {}

    @abstractmethod
    def segment_units(self, sku: str) -> dict[int, int]:
        """Return the units of each segment, by number."""

    @abstractmethod
    def units_left(self, sku: str) -> int:
        """Return all units of a sku that are left, read at one moment."""

    @abstractmethod
    def sell(self, order: OrderRequest, held: Sequence[HeldItem], save: Save) -> None:
        """Take the items and save the order. The caller holds the locks.

        Raises:
            SegmentsChanged: a segment no longer has enough units, or there are new segments. Nothing was taken.
        """

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        # Connect to Postgres before taking the lock, so that its waiters do not wait for the connection, too.
        connection.ensure_connection()
        until = time.monotonic() + self.wait
        while True:
            try:
                with ExitStack() as leases:
                    held = [self._hold(item, leases, until) for item in order.items]
                    self.sell(order, held, save)
                    for each in held:
                        self._subtract_in_cache(each)
                return Placement.COMMITTED
            except SegmentsChanged as changed:
                self.forget(changed.sku)
                if time.monotonic() > until:
                    raise StockBusy(str(changed)) from changed
            except LockTimeout as error:
                raise StockBusy(str(error)) from error
            except (LockUnavailable, RedisError) as error:  # The server is away, out of memory, or a replica.
                raise StockUnavailable(str(error)) from error

    def _hold(self, item: RequestItem, leases: ExitStack, until: float) -> HeldItem:
        segments = self._cached_units(item.sku)
        if not any(units >= item.quantity for units in segments.values()):
            left = self.units_left(item.sku)
            if left < item.quantity:
                raise SoldOut(item.sku, wanted=item.quantity, left=left)
            self.forget(item.sku)
            segments = self._cached_units(item.sku)
        covering = [number for number, units in segments.items() if units >= item.quantity]
        if covering:
            first = self.start(item.sku, len(covering))
            number, lease = self._lock_one(item.sku, covering[first:] + covering[:first], leases, until)
            return HeldItem(item, number, {number: lease})
        numbers = sorted(segments.keys() | set(range(self.segments)))
        return HeldItem(item, None, {number: self._lock(item.sku, number, leases, until) for number in numbers})

    def _lock_one(self, sku: str, numbers: list[int], leases: ExitStack, until: float) -> tuple[int, Lease]:
        """Lock the first of these segments of a sku. If another order holds its lock, wait for the second segment.

        Returns:
            The number of the locked segment, and its lease.
        """
        # Trying more segments costs more than it gains: with many customers all segments are held.
        first, second = numbers[0], numbers[1 % len(numbers)]
        if second != first:
            with suppress(LockTimeout):
                return first, self._hold_lock(sku, first, leases, 0.0)
        return second, self._lock(sku, second, leases, until)

    def _lock(self, sku: str, number: int, leases: ExitStack, until: float) -> Lease:
        return self._hold_lock(sku, number, leases, max(0.0, until - time.monotonic()))

    def _hold_lock(self, sku: str, number: int, leases: ExitStack, wait: float) -> Lease:
        return leases.enter_context(observing.hold(self.make_lock(sku, number), wait, strategy=self.name))

    def _cached_units(self, sku: str) -> dict[int, int]:
        read_at, segments = self._cache.get(sku, (0.0, {}))
        if not segments or time.monotonic() > read_at + CACHE_SECONDS:
            segments = self.segment_units(sku)
            self._cache[sku] = time.monotonic(), segments
        return segments

    def _subtract_in_cache(self, sold: HeldItem) -> None:
        # No mutex is needed: if threads overwrite each other's changes, only the choice of the first segment is worse.
        if sold.number is None:
            self.forget(sold.item.sku)
        elif (cached := self._cache.get(sold.item.sku)) is not None and sold.number in cached[1]:
            cached[1][sold.number] -= sold.item.quantity

    def forget(self, sku: str) -> None:
        """Drop the cached units of a sku, so that the next order reads its segments again."""
        self._cache.pop(sku, None)


def round_robin() -> Callable[[str, int], int]:
    """Return a `start` for `Segmented` that takes the segments of each sku in turn.

    It counts per sku. With one count for all skus, orders with N skus and a stock in N segments would not take turns:
    each sku would start at the same segment in every order.
    """
    turns: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
    return lambda sku, segments: next(turns[sku]) % segments
