"""Stock counters in Redis for skus that are split into segments: one counter per segment.

A segment's counter is an ordinary counter (see `whole.py`) with its own name. Reservations store that name, so units go
back to the segment from which they were taken. While no order is in progress, counters + reserved units of a sku = its
units on hand in Postgres.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from redis import Redis

from inventory.counters.scripts import script
from inventory.counters.whole import RESERVATIONS, RESERVED_UNITS, Counters, counter_key

REBALANCE = script("rebalance")


def segment_count_key(sku: str) -> str:
    """Return the Redis key of a sku's number of segments. This number never shrinks while the sale runs."""
    return f"{{stock}}:segments:{sku}"


def segment_name(sku: str, number: int) -> str:
    """Return the counter name of a segment: the sku, a zero byte and the number.

    Postgres allows no zero byte in a sku, so names are unique. The zero byte sorts before all other characters, so
    names have the same order as their skus.
    """
    return f"{sku}\0{number}"


class SegmentCounters(Counters):
    """The counters of all segments in one Redis server."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self._rebalance: Any = client.register_script(REBALANCE)

    def segments(self, sku: str, guess: int = 0) -> tuple[Sequence[int], int] | None:
        """Return the units in the counter of each segment, and the units reserved from all of them, read atomically.

        Args:
            guess: the expected number of segments. A right guess saves a round trip.

        Returns:
            None for a sku without segments.
        """
        while True:
            names = [segment_name(sku, number) for number in range(guess)]
            with self.client.pipeline(transaction=True) as pipe:
                pipe.mget(segment_count_key(sku), *map(counter_key, names))
                pipe.hmget(RESERVED_UNITS, names or [""])
                (segment_count, *counts), reserved = pipe.execute()
            if segment_count is None:
                return None
            if int(segment_count) == guess:
                return [int(count or 0) for count in counts], sum(int(units or 0) for units in reserved)
            guess = int(segment_count)

    def totals(self, skus: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return (units in all counters, units reserved) of each sku that has segments."""
        known = self.client.mget(map(segment_count_key, skus)) if skus else []
        found = {sku: self.segments(sku, int(many)) for sku, many in zip(skus, known, strict=True) if many is not None}
        return {sku: (sum(each[0]), each[1]) for sku, each in found.items() if each is not None}

    def rebalance(self, sku: str, known: int, segment_count: int, first: int) -> int | None:
        """Distribute the units of a sku evenly over its segments. Give the first segment `first` additional units.

        Args:
            known: the number of segments whose locks the caller holds.
            segment_count: the number of segments that get units.
            first: units that the first segment gets in addition to its share.

        Returns:
            The units in all segments. If they are fewer than `first`, nothing was moved. None if the sku has no
            segments, or more segments than `known`.
        """
        units = self._run(sku, known, segment_count, "", first, ())
        return None if units is None else units[1]

    def load_segments(
        self, sku: str, segment_count: int, on_hand: int, committed: Collection[UUID], *, make: bool
    ) -> int | None:
        """Set the counters of a sku's segments to equal parts of its units on hand minus its units reserved.

        Args:
            segment_count: the number of segments that get units; existing segments beyond it are emptied.
            on_hand, committed, make: as in `Counters.load`. The result is the same, too.
        """
        while True:
            found = self.segments(sku, segment_count)
            if found is None and not make:
                return None
            units = self._run(sku, len(found[0]) if found else 0, segment_count, on_hand, 0, committed)
            if units is not None:
                return units[1] - units[0] if found else 0

    def unload_segments(self, skus: Iterable[str]) -> None:
        """Delete the segment counters of skus whose sale has ended, or whose counters are wrong."""
        for sku in skus:
            if (found := self.segments(sku)) is not None:
                self.client.delete(segment_count_key(sku), *_counter_keys(sku, len(found[0])))

    def _run(
        self, sku: str, known: int, segment_count: int, on_hand: int | str, first: int, committed: Collection[UUID]
    ) -> tuple[int, int] | None:
        keys = [segment_count_key(sku), RESERVED_UNITS, RESERVATIONS, *_counter_keys(sku, max(known, segment_count))]
        arguments = [known, segment_count, on_hand, first, segment_name(sku, 0)[:-1], *map(str, committed)]
        answer = self._rebalance(keys, arguments)
        return None if answer is None else (int(answer[0]), int(answer[1]))


def _counter_keys(sku: str, segment_count: int) -> list[str]:
    return [counter_key(segment_name(sku, number)) for number in range(segment_count)]
