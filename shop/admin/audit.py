"""The audit as people see it: the law of the tables for every sku, and where Redis differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis import RedisError

from inventory.audit import Figures
from inventory.strategies import registry
from shop import conservation


@dataclass(frozen=True, slots=True)
class Counter:
    """What Redis has of a sku, beside what is on hand. In units."""

    sku: str
    left: int
    reserved: int
    on_hand: int

    @property
    def drift(self) -> int:
        """What Redis has too much; 0 at rest. Orders on their way are noted a moment longer than they are on hand."""
        return self.left + self.reserved - self.on_hand


@dataclass(frozen=True)
class Audit:
    """Both laws at one moment.

    Args:
        counters: by sku; a sku that is not taken from Redis has none.
        error: why there are no counters, if Redis was silent.
    """

    figures: Sequence[Figures]
    counters: Mapping[str, Counter]
    error: str = ""

    @property
    def broken(self) -> list[Figures]:
        return [figures for figures in self.figures if not figures.conserved]

    @property
    def sold(self) -> int:
        return sum(figures.sold for figures in self.figures)

    @property
    def differing(self) -> list[Counter]:
        return [counter for counter in self.counters.values() if counter.drift]


def audit() -> Audit:
    """Hold both laws against every sku.

    Raises:
        RuntimeError: called inside a transaction.
    """
    figures = conservation.figures()
    try:
        return Audit(figures, read_counters({each.sku: each.on_hand for each in figures}))
    except (RedisError, ValueError) as error:  # no answer, or something that is no counter
        return Audit(figures, {}, str(error))


def read_counters(on_hand: Mapping[str, int]) -> dict[str, Counter]:
    found = registry.in_redis(list(on_hand))
    return {sku: Counter(sku, *found[sku], units) for sku, units in on_hand.items() if sku in found}
