"""The conservation law: every unit received is on hand or sold, no figure is negative, nothing is sold twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """What the tables say of one sku, in units."""

    sku: str
    received: int
    on_hand: int
    sold: int

    @property
    def drift(self) -> int:
        """Units that nobody can account for; negative when more are gone than ever came."""
        return self.received - self.on_hand - self.sold

    @property
    def oversold(self) -> int:
        """Units sold that never existed."""
        return max(0, self.sold - self.received)

    @property
    def conserved(self) -> bool:
        """Whether the whole law holds, not the sum alone: -1 on hand and one sold too many add up as well."""
        return self.drift == 0 and min(self.on_hand, self.sold) >= 0 and self.sold <= self.received


def check(stock: Iterable[tuple[str, int, int]], sold: Mapping[str, int]) -> list[Figures]:
    """Hold the law against the tables. A pure function: it reads no counter that a strategy keeps.

    Args:
        stock: sku, units received, units on hand. Read it and `sold` in one snapshot.
        sold: units of each sku in orders that stand; a sku may be missing.

    Returns:
        The figures of every sku that is in stock or was sold, in order. The law holds when each is `conserved`.
    """
    received = {sku: (units, on_hand) for sku, units, on_hand in stock}
    return [Figures(sku, *received.get(sku, (0, 0)), sold.get(sku, 0)) for sku in sorted(received.keys() | sold.keys())]
