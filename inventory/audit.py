"""Audit of stock by the conservation law: units received = on hand + sold, and no figure is negative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one sku in the tables, in units.

    Args:
        unexplained: the `received` of the sku's stock row, minus the sum of its stock movements. It should be 0.
    """

    sku: str
    received: int
    on_hand: int
    sold: int
    unexplained: int = 0

    @property
    def drift(self) -> int:
        """Units received that are neither on hand nor sold. Negative if on hand plus sold is more than received."""
        return self.received - self.on_hand - self.sold

    @property
    def oversold(self) -> int:
        """Units sold in excess of the units received; 0 if there are none."""
        return max(0, self.sold - self.received)

    @property
    def conserved(self) -> bool:
        """Whether the conservation law holds.

        Comparing the sums is not enough: with 10 received, 11 sold and -1 on hand, the sums are equal.
        """
        adds_up = self.drift == 0 and self.unexplained == 0
        return adds_up and min(self.on_hand, self.sold) >= 0 and self.sold <= self.received


def check(stock: Iterable[tuple[str, int, int]], sold: Mapping[str, int]) -> list[Figures]:
    """Compute the figures of every sku from values that the caller has read from the tables.

    Args:
        stock: (sku, units received, units on hand) of every sku. Read `stock` and `sold` in one database snapshot.
        sold: units in valid orders, by sku. A sku without orders may be missing.

    Returns:
        The figures of every sku in either argument, sorted by sku. The conservation law holds if all figures are
        `conserved`.
    """
    rows = {sku: (received, on_hand) for sku, received, on_hand in stock}
    return [Figures(sku, *rows.get(sku, (0, 0)), sold.get(sku, 0)) for sku in sorted(rows.keys() | sold.keys())]
