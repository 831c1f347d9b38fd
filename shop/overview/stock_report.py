"""The report on all stock for operators: the conservation law in Postgres, and skus whose counters in Redis differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import DatabaseError
from redis import RedisError

from inventory.audit import Figures
from inventory.outages import is_away
from inventory.strategies import registry
from shop import conservation


@dataclass(frozen=True, slots=True)
class RedisUnits:
    """The units of a sku that Redis counts as left and reserved, and the units on hand in Postgres."""

    sku: str
    left: int
    reserved: int
    on_hand: int

    @property
    def drift(self) -> int:
        """Units that Redis counts in excess of Postgres. This is above 0 for moments while orders are being saved."""
        return self.left + self.reserved - self.on_hand


@dataclass(frozen=True)
class StockReport:
    """The figures of Postgres and Redis at one moment.

    Args:
        counters: the figures in Redis by sku, only for skus whose units are taken from Redis.
        error: why Redis could not be read; empty if it was.
        unaudited: why Postgres has not computed the figures, such as a statement timeout; empty if it has.
    """

    figures: Sequence[Figures]
    counters: Mapping[str, RedisUnits]
    error: str = ""
    unaudited: str = ""

    @property
    def broken(self) -> list[Figures]:
        return [figures for figures in self.figures if not figures.conserved]

    @property
    def sold(self) -> int:
        return sum(figures.sold for figures in self.figures)

    @property
    def differing(self) -> list[RedisUnits]:
        return [counter for counter in self.counters.values() if counter.drift]


def stock_report() -> StockReport:
    """Read the figures of all stock.

    Raises:
        DatabaseError: Postgres cannot be reached.
    """
    try:
        figures = conservation.figures()
    except DatabaseError as error:
        # The audit reads all orders, so a large shop may exceed a time limit of Postgres.
        if is_away(error):
            raise
        return StockReport((), {}, unaudited=str(error))
    try:
        return StockReport(figures, read_counters({each.sku: each.on_hand for each in figures}))
    except (RedisError, ValueError) as error:  # ValueError: the value of a counter in Redis is not a number.
        return StockReport(figures, {}, str(error))


def read_counters(on_hand: Mapping[str, int]) -> dict[str, RedisUnits]:
    found = registry.redis_stock(list(on_hand))
    return {sku: RedisUnits(sku, *found[sku], units) for sku, units in on_hand.items() if sku in found}
