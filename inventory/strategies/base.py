"""`Strategy`: the base class of all ways to take the stock for an order and to save the order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar
from uuid import UUID

from django.db import transaction

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, QueuedOrder, ReturnedUnits, Save, Saved


def none_saved(orders: Collection[UUID]) -> set[UUID]:
    """Return an empty set: the `Saved` callback for callers without an order table."""
    return set()


class Strategy(ABC):
    """A way of taking stock. It holds no state of an order, so all threads share one object.

    Some strategies sell from a copy of the stock, such as counters in Redis, or split it into rows. They override the
    methods below that maintain the copy, and `registry.COPYING` has to name them.
    """

    name: str
    queues: ClassVar[bool] = False
    """Whether `place` returns before the order is saved. Workers then have to save the queued orders."""

    def place(self, order: OrderRequest, save: Save, saved: Saved = none_saved) -> Placement:
        """Take the stock of every item and save the order, or change nothing.

        Args:
            save: writes the order in the transaction that the strategy has opened, or in the one statement that also
                takes the stock, see `SaveAtOnce`.
            saved: returns which orders with a reservation are saved; needed to verify "sold out".

        Returns:
            Where the order is stored: committed in Postgres, or queued in Redis.

        Raises:
            SoldOut, TryAgain, Refusal: nothing was sold. But after `StockUnavailable` of a strategy that queues, the
                order may be on the queue: see `queued_order`.
            django.db.Error: Postgres did not answer, or refused a statement. The order may be saved.
            RuntimeError: a transaction is open. The strategy would release its lock before that transaction commits:
                the next order would read old stock and oversell.
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
        """Do the work of `place`. It is called when no transaction is open."""

    def _verify_sold_out(self, refused: SoldOut, saved: Saved) -> None:
        """Check with Postgres that a sku is sold out, if the strategy sells from a copy of the stock.

        Args:
            refused: the error that is based on the copy. The number of units left in this error was read before this
                call.

        Raises:
            StockNotLoaded: Postgres has more units. Loading the stock again corrects the copy.
        """

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        """Create or correct the copy of the stock that this strategy sells from. Safe at any time.

        Args:
            saved: returns which orders with a reservation are saved.
        """

    def unload(self, skus: Sequence[str]) -> None:
        """Remove the copy of the stock, even one made for another sale. Call it while no sale of these skus is open."""

    def hold(self, skus: Sequence[str]) -> None:
        """Remove the copy of the stock because the sale of these skus is paused."""
        self.unload(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        """Correct existing copies of the stock after a committed change of the units on hand.

        Returns:
            Units by which the copy of each sku was wrong. A sku without a copy may be left out.

        Raises:
            RedisError: Redis did not answer. The copies stay wrong until the stock is reconciled.
        """
        return {}

    def units_returned(self, returned: Sequence[ReturnedUnits], saved: Saved) -> None:
        """Correct existing copies of the stock after a commit that returned units of orders. See `refresh`."""
        self.refresh(sorted({each.sku for each in returned}), saved)

    def queued_order(self, customer: int, key: str) -> QueuedOrder | None:
        """Return the order on the queue that has a customer's idempotency key; None if there is none.

        Strategies without a queue return None.

        Raises:
            StockUnavailable: Redis did not answer.
        """
        return None
