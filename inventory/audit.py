"""The conservation law: every unit received is on hand or sold, no figure is negative, nothing is sold twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """What the tables say of one sku, in units.

    Args:
        unexplained: what its own row says was received, beyond what its movements add up to. Nobody has said so.
    """

    sku: str
    received: int
    on_hand: int
    sold: int
    unexplained: int = 0

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
        adds_up = self.drift == 0 and self.unexplained == 0
        return adds_up and min(self.on_hand, self.sold) >= 0 and self.sold <= self.received


def check(
    stock: Iterable[tuple[str, int, int]], sold: Mapping[str, int], moved: Mapping[str, int] | None = None
) -> list[Figures]:
    """Hold the law against the tables. A pure function: it reads no counter that a strategy keeps.

    Args:
        stock: sku, units received, units on hand. Read it and the others in one snapshot.
        sold: units of each sku in orders that stand; a sku may be missing.
        moved: the sum of each sku's movements, which is what counts as received; a sku may be missing. None where
            nobody keeps movements.

    Returns:
        The figures of every sku that is in stock or was sold, in order. The law holds when each is `conserved`.
    """
    rows = {sku: (received, on_hand) for sku, received, on_hand in stock}
    skus = sorted(rows.keys() | sold.keys() | (moved or {}).keys())
    return [_figures(sku, *rows.get(sku, (0, 0)), sold.get(sku, 0), moved) for sku in skus]


def _figures(sku: str, noted: int, on_hand: int, sold: int, moved: Mapping[str, int] | None) -> Figures:
    received = noted if moved is None else moved.get(sku, 0)
    return Figures(sku, received, on_hand, sold, unexplained=noted - received)
