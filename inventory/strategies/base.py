"""The contract of a strategy: it takes stock, and decides when the order is saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from django.db import transaction

from inventory.draft import Draft, Placement, Save


class Strategy(ABC):
    """A way of taking stock. Holds no state of an order: every thread may use the same object."""

    name: str

    def place(self, order: Draft, save: Save) -> Placement:
        """Take the stock of every line and save the order, or do neither.

        Args:
            save: writes the order inside the transaction that the strategy has opened.

        Returns:
            Where the order is safe by now.

        Raises:
            SoldOut, TryAgain, Refusal: nothing was sold.
            RuntimeError: called inside a transaction. A lock let go before the commit is the oldest way to oversell,
                and only the owner of the outermost transaction knows when the commit is.
        """
        if transaction.get_connection().in_atomic_block:
            raise RuntimeError(f"{self.name} decides when to commit: call it outside any transaction.")
        return self._place(order, save)

    @abstractmethod
    def _place(self, order: Draft, save: Save) -> Placement:
        """What the strategy does. No transaction is open."""

    def preheat(self, skus: Sequence[str]) -> None:
        """Make whatever copy of the stock this strategy takes from, before the sale opens."""

    def unload(self, skus: Sequence[str]) -> None:
        """Remove that copy: the sale is over."""

    def given_back(self, quantities: Sequence[tuple[str, int]]) -> None:
        """Units are on hand in Postgres again, and committed: bring up to date whatever copy this strategy keeps.

        Args:
            quantities: pairs of sku and units.
        """
