"""The contract of a strategy: it takes stock, and decides when the order is saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from django.db import transaction

from inventory.requests import OrderRequest, Placement, Returned, Save, Saved, Waiting


class Strategy(ABC):
    """A way of taking stock. Holds no state of an order: every thread may use the same object."""

    name: str
    queues: ClassVar[bool] = False
    """Whether it answers before the order is saved: somebody has to work the queue off."""

    def place(self, order: OrderRequest, save: Save) -> Placement:
        """Take the stock of every item and save the order, or do neither.

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
    def _place(self, order: OrderRequest, save: Save) -> Placement:
        """What the strategy does. No transaction is open."""

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        """Make whatever copy of the stock this strategy takes from, or make it right again. Harmless at any time.

        Args:
            saved: tells requests that became orders from those that are on their way.
        """

    def unload(self, skus: Sequence[str]) -> None:
        """Remove that copy, whosever sale of the skus it was made for: none is open now."""

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        """Bring up to date what copies there are: what is on hand in Postgres has changed, and is committed.

        Returns:
            By how many units the copy of each sku was wrong; a sku without a copy may be left out.

        Raises:
            RedisError: Redis did not answer; the copies are wrong until they are reconciled.
        """
        return {}

    def given_back(self, returned: Sequence[Returned], saved: Saved) -> None:
        """Orders ended, and their units are on hand again, committed. See `refresh`."""
        self.refresh(sorted({each.sku for each in returned}), saved)

    def waiting(self, customer: int, key: str) -> Waiting | None:
        """The customer's request under this key that is safe but no order yet; None for a strategy that saves at once.

        Raises:
            StockUnavailable: that cannot be told at the moment.
        """
        return None
