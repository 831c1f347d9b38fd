"""Which segment of a sku a buyer takes, and the locks that go with it: what the two strategies that split share."""

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

from inventory.errors import SoldOut, StockBusy, StockUnavailable
from inventory.requests import OrderRequest, Placement, RequestItem, Save
from inventory.strategies.base import Strategy
from locking import Lease, Lock, LockTimeout, LockUnavailable

MOMENT = 2.0
"""Seconds for which a process skips the segments that it has seen exhausted, and does not see those that are new."""


@dataclass(frozen=True, slots=True)
class Held:
    """A item, and the leases of the segments that it is served from.

    Args:
        number: the segment that serves it alone; None when no single one does, and all are held.
        leases: by the segment's number.
    """

    item: RequestItem
    number: int | None
    leases: Mapping[int, Lease]


class Moved(Exception):
    """The segments of a sku are not what they were when they were looked at: look again."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"The stock of {sku} moved between its segments until the time was over.")
        self.sku = sku


class Segmented(Strategy):
    """A lock a segment. A buyer holds one of each sku; when none covers his item, he holds all of them.

    Locks are waited for in the order of sku and number, and only while none is held that comes later, so those who wait
    cannot form a circle: neither two opposite carts, nor one who gathers and one who holds a single segment.

    What a process has seen of the segments says where to try first. It is never a reason to say "sold out".

    Args:
        make_lock: the lock of a sku's segment. It must be fenced.
        wait: seconds a buyer waits for the locks of the whole cart.
        segments: how many a sku is split into. It may change while a sale runs: whoever preheats or gathers next
            spreads the stock over so many, and everybody sells from those that have some.
        start: told the sku and how many segments would do, says which to try first. By default they are taken in turn.
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
            raise ValueError(f"A sku is split into one segment at least, not {segments}.")
        self.make_lock = make_lock
        self.wait = wait
        self.segments = segments
        self.start = start or round_robin()
        self._seen: dict[str, tuple[float, dict[int, int]]] = {}

    @abstractmethod
    def look(self, sku: str) -> dict[int, int]:
        """The units of each segment, by number."""

    @abstractmethod
    def left(self, sku: str) -> int:
        """The units of a sku altogether, as of one moment, wherever they are."""

    @abstractmethod
    def sell(self, order: OrderRequest, held: Sequence[Held], save: Save) -> None:
        """Take the items and save the order, as the holder of the locks.

        Raises:
            Moved: a segment does not cover its item any more, or there are others; nothing was taken.
        """

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        # Taken from the pool now: what is slow and can be done before the lock is not done under it.
        connection.ensure_connection()
        until = time.monotonic() + self.wait
        while True:
            try:
                with ExitStack() as leases:
                    held = [self._hold(item, leases, until) for item in order.items]
                    self.sell(order, held, save)
                    for each in held:
                        self._note(each)
                return Placement.COMMITTED
            except Moved as moved:
                self.forget(moved.sku)
                if time.monotonic() > until:
                    raise StockBusy(str(moved)) from moved
            except LockTimeout as error:
                raise StockBusy(str(error)) from error
            except (LockUnavailable, RedisError) as error:  # no answer, or an error: out of memory, a replica
                raise StockUnavailable(str(error)) from error

    def _hold(self, item: RequestItem, leases: ExitStack, until: float) -> Held:
        segments = self._look(item.sku)
        if not any(units >= item.quantity for units in segments.values()):
            left = self.left(item.sku)
            if left < item.quantity:
                raise SoldOut(item.sku, wanted=item.quantity, left=left)
            self.forget(item.sku)
            segments = self._look(item.sku)
        covering = [number for number, units in segments.items() if units >= item.quantity]
        if covering:
            at = self.start(item.sku, len(covering))
            number, lease = self._one_of(item.sku, covering[at:] + covering[:at], leases, until)
            return Held(item, number, {number: lease})
        numbers = sorted(segments.keys() | set(range(self.segments)))
        return Held(item, None, {number: self._wait(item.sku, number, leases, until) for number in numbers})

    def _one_of(self, sku: str, numbers: list[int], leases: ExitStack, until: float) -> tuple[int, Lease]:
        """The lease of the first of these segments or, when that is busy, of the next as soon as it is to be had."""
        # Asking more of them costs more than it gains: when there are many buyers, all are busy.
        first, second = numbers[0], numbers[1 % len(numbers)]
        if second != first:
            with suppress(LockTimeout):
                return first, leases.enter_context(self.make_lock(sku, first).hold(0))
        return second, self._wait(sku, second, leases, until)

    def _wait(self, sku: str, number: int, leases: ExitStack, until: float) -> Lease:
        return leases.enter_context(self.make_lock(sku, number).hold(max(0.0, until - time.monotonic())))

    def _look(self, sku: str) -> dict[int, int]:
        seen_at, segments = self._seen.get(sku, (0.0, {}))
        if not segments or time.monotonic() > seen_at + MOMENT:
            segments = self.look(sku)
            self._seen[sku] = time.monotonic(), segments
        return segments

    def _note(self, sold: Held) -> None:
        """Remember what was taken. Threads may overtake each other here: it is a hint."""
        if sold.number is None:
            self.forget(sold.item.sku)
        elif (seen := self._seen.get(sold.item.sku)) is not None and sold.number in seen[1]:
            seen[1][sold.number] -= sold.item.quantity

    def forget(self, sku: str) -> None:
        """Look at the segments of a sku again before the next order."""
        self._seen.pop(sku, None)


def round_robin() -> Callable[[str, int], int]:
    """A start that goes round: of each sku the segments in turn. With one turn for all a cart of as many skus as there
    are segments would find each sku at the same segment for ever."""
    turns: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
    return lambda sku, segments: next(turns[sku]) % segments
