"""The stock of a sku in several keys of Redis: a counter a segment, and a key that says how many there are.

A segment's counter is a counter like any other (see counters.py), under a name of its own: what is reserved is noted
under that name, and goes back to where it came from without anybody having to know of segments.
The law of a sku is `all of its counters + reserved from any of them = on hand`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from redis import Redis

from inventory.counters.whole import NOTES, SCRIPTS, UNITS, Counters, counter_key


def how_many_key(sku: str) -> str:
    """The key that says how many segments a sku has. They only become more, until the sale is over."""
    return f"{{stock}}:segments:{sku}"


def name_of(sku: str, number: int) -> str:
    """What a segment's counter is called. No sku has a zero byte, which Postgres refuses, and it sorts before all."""
    return f"{sku}\0{number}"


class SegmentCounters(Counters):
    """The segments' counters of one Redis."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self._spread: Any = client.register_script(SCRIPTS["rebalance"])

    def segments(self, sku: str, guess: int = 0) -> tuple[Sequence[int], int] | None:
        """The units of each segment, and those that are reserved from any of them, as of one moment; None without any.

        Args:
            guess: how many there are. A right one saves a round trip.
        """
        while True:
            names = [name_of(sku, number) for number in range(guess)]
            with self.client.pipeline(transaction=True) as asked:
                asked.mget(how_many_key(sku), *map(counter_key, names))
                asked.hmget(UNITS, names or [""])
                (how_many, *counts), reserved = asked.execute()
            if how_many is None:
                return None
            if int(how_many) == guess:
                return [int(count or 0) for count in counts], sum(int(units or 0) for units in reserved)
            guess = int(how_many)

    def sums(self, skus: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """What Redis may still admit of each sku that has segments, and what is reserved from them."""
        known = self.client.mget(map(how_many_key, skus)) if skus else []
        found = {sku: self.segments(sku, int(many)) for sku, many in zip(skus, known, strict=True) if many is not None}
        return {sku: (sum(each[0]), each[1]) for sku, each in found.items() if each is not None}

    def gather(self, sku: str, known: int, over: int, first: int) -> int | None:
        """Spread the units of a sku evenly over its segments, but so many of them that the first has enough.

        Args:
            known: of how many segments the caller holds the locks.
            first: units that are wanted of the first.

        Returns:
            Units in all; fewer than `first` were left where they are. None when there are more segments, or none.
        """
        spread = self._run(sku, known, over, "", first, ())
        return None if spread is None else spread[1]

    def load_segments(
        self, sku: str, over: int, on_hand: int, committed: Collection[UUID], *, make: bool
    ) -> int | None:
        """Make the counters of a sku agree with what is on hand, less what is reserved, and spread them. See `load`.

        Args:
            over: how many segments; those that there are beyond are left with nothing.
        """
        while True:
            found = self.segments(sku, over)
            if found is None and not make:
                return None
            spread = self._run(sku, len(found[0]) if found else 0, over, on_hand, 0, committed)
            if spread is not None:
                return spread[1] - spread[0] if found else 0

    def unload_segments(self, skus: Iterable[str]) -> None:
        """Delete the counters of skus whose sale is over, or that cannot be trusted any more."""
        for sku in skus:
            if (found := self.segments(sku)) is not None:
                self.client.delete(how_many_key(sku), *_counters(sku, len(found[0])))

    def _run(
        self, sku: str, known: int, over: int, on_hand: int | str, first: int, committed: Collection[UUID]
    ) -> tuple[int, int] | None:
        keys = [how_many_key(sku), UNITS, NOTES, *_counters(sku, max(known, over))]
        answer = self._spread(keys, [known, over, on_hand, first, name_of(sku, 0)[:-1], *map(str, committed)])
        return None if answer is None else (int(answer[0]), int(answer[1]))


def _counters(sku: str, many: int) -> list[str]:
    return [counter_key(name_of(sku, number)) for number in range(many)]
