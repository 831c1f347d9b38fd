"""The contract of a strategy: it takes the stock of an order and decides when the order is saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar
from uuid import UUID

from django.db import transaction

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, QueuedOrder, ReturnedUnits, Save, Saved


def none_saved(orders: Collection[UUID]) -> set[UUID]:
    """Say that none of the orders is saved: the `Saved` of callers that keep no orders."""
    return set()


class Strategy(ABC):
    """A way of taking stock. It holds no state of an order, so all threads share one object.

    A strategy that sells from a copy of the stock, or splits it, overrides the methods below that keep this copy right;
    `registry.COPYING` has to name it.
    """

    name: str
    queues: ClassVar[bool] = False
    """Whether `place` returns before the order is saved. Workers then have to save the queued orders."""

    def place(self, order: OrderRequest, save: Save, saved: Saved = none_saved) -> Placement:
        """Take the stock of every item and save the order, or do neither.

        Args:
            save: writes the order in the transaction that the strategy has opened.
            saved: tells which orders with a reservation are saved, before "sold out" is answered.

        Returns:
            Where the order is stored: committed in Postgres, or queued in Redis.

        Raises:
            SoldOut, TryAgain, Refusal: nothing was sold.
            RuntimeError: a transaction is open. The strategy must know when the outermost transaction commits: a lock
                that is released before the commit lets the next order read old stock and oversell.
        """
        if transaction.get_connection().in_atomic_block:
            raise RuntimeError(f"{self.name} decides when to commit: call it outside any transaction.")
        try:
            return self._place(order, save)
        except SoldOut as refused:
            self._verify_sold_out(refused, saved)
            raise

    @abstractmethod
    def _place(self, order: OrderRequest, save: Save) -> Placement:
        """Do the work of `place`. No transaction is open."""

    def _verify_sold_out(self, refused: SoldOut, saved: Saved) -> None:
        """Check with Postgres before "sold out" is answered, if the strategy sells from a copy of the stock.

        Args:
            refused: what the copy says. Its units left were read before this call.

        Raises:
            StockNotLoaded: more units can be bought. Loading the stock corrects the copy.
        """

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        """Make the copy of the stock that this strategy sells from, or correct it. Safe at any time.

        Args:
            saved: tells which orders with a reservation are saved.
        """

    def unload(self, skus: Sequence[str]) -> None:
        """Remove the copy of the stock, whichever sale it was made for. No sale of these skus is open."""

    def hold(self, skus: Sequence[str]) -> None:
        """Remove the copy of the stock while the sale of these skus is paused."""
        self.unload(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        """Correct existing copies after a committed change of the units on hand.

        Returns:
            Units by which the copy of each sku was wrong; a sku without a copy may be missing.

        Raises:
            RedisError: Redis did not answer. The copies stay wrong until the stock is reconciled.
        """
        return {}

    def units_returned(self, returned: Sequence[ReturnedUnits], saved: Saved) -> None:
        """Correct existing copies after a commit that returned the units of ended orders. See `refresh`."""
        self.refresh(sorted({each.sku for each in returned}), saved)

    def queued_order(self, customer: int, key: str) -> QueuedOrder | None:
        """Return the order on the queue that has a customer's idempotency key; None if the strategy saves at once.

        Raises:
            StockUnavailable: Redis did not answer.
        """
        return None
