"""The conservation law: units received = on hand + sold, no figure is negative, and no unit is sold twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one sku in the tables, in units.

    Args:
        unexplained: units received according to the sku's own row, minus the sum of its movements.
    """

    sku: str
    received: int
    on_hand: int
    sold: int
    unexplained: int = 0

    @property
    def drift(self) -> int:
        """Units that are missing; negative when there are more on hand and sold than were received."""
        return self.received - self.on_hand - self.sold

    @property
    def oversold(self) -> int:
        """Units sold beyond the units received."""
        return max(0, self.sold - self.received)

    @property
    def conserved(self) -> bool:
        """Whether the law holds. The sum alone is not enough: -1 on hand and one sold too many add up as well."""
        adds_up = self.drift == 0 and self.unexplained == 0
        return adds_up and min(self.on_hand, self.sold) >= 0 and self.sold <= self.received


def check(
    stock: Iterable[tuple[str, int, int]], sold: Mapping[str, int], moved: Mapping[str, int] | None = None
) -> list[Figures]:
    """Compute the figures of every sku. A pure function of the tables: it reads no counter that a strategy keeps.

    Args:
        stock: sku, units received, units on hand. Read it, `sold` and `moved` in one snapshot.
        sold: units of each sku in valid orders; a sku may be missing.
        moved: the sum of each sku's movements, which is what counts as received; a sku may be missing. None when there
            are no movements to compare with.

    Returns:
        The figures of every sku that is in stock or was sold, sorted. The law holds when each is `conserved`.
    """
    rows = {sku: (received, on_hand) for sku, received, on_hand in stock}
    skus = sorted(rows.keys() | sold.keys() | (moved or {}).keys())
    return [_figures(sku, *rows.get(sku, (0, 0)), sold.get(sku, 0), moved) for sku in skus]


def _figures(sku: str, in_row: int, on_hand: int, sold: int, moved: Mapping[str, int] | None) -> Figures:
    received = in_row if moved is None else moved.get(sku, 0)
    return Figures(sku, received, on_hand, sold, unexplained=in_row - received)
