"""Errors raised when units cannot be taken from the stock.

Nothing was sold. But after `StockUnavailable` of `lua-queue`, the order may be on the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID


class InventoryError(Exception):
    """Base class of the errors of this package."""


class SoldOut(InventoryError):
    """Too few units of a sku are left. A retry can succeed only after units came back or a delivery arrived."""

    def __init__(self, sku: str, *, wanted: int, left: int) -> None:
        super().__init__(f"{sku}: {wanted} wanted, {left} left")
        self.sku = sku
        self.wanted = wanted
        self.left = left


class CorrectionTooLarge(InventoryError):
    """A correction would remove more units than are on hand."""

    def __init__(self, sku: str, *, wanted: int, left: int) -> None:
        super().__init__(f"{sku}: cannot remove {wanted} units, only {left} are on hand")
        self.sku = sku
        self.wanted = wanted
        self.left = left


class TryAgain(InventoryError):
    """A temporary failure. Units may still be left, so the caller should try again."""


class StockBusy(TryAgain):
    """The lock was not granted in time, a later holder has changed the stock, or the segments kept changing."""


class StockElsewhere(TryAgain):
    """Enough units are left, but not in the stock row: another sale has split them, or they were just returned."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"{sku} is split for another sale, or units have just been returned. Try again.")
        self.sku = sku


class StockConflict(TryAgain):
    """Every attempt of an optimistic update failed, because other orders had changed the row."""


class StockReserved(TryAgain):
    """The units left are reserved for orders that are not saved yet. If such an order fails, its units come back."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"{sku}: the units left are reserved for other orders. Try again.")
        self.sku = sku


class StockNotLoaded(TryAgain):
    """Something the strategy needs, such as a counter in Redis, is missing or wrong. Preheating the sale repairs it."""


class StockUnavailable(TryAgain):
    """A server that the strategy needs did not answer or refused the request. `lua-queue` may have queued the order."""


class UnknownStrategy(StockUnavailable):
    """This process has no strategy of that name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"This process has no strategy {name}. It has {', '.join(known)}. Set ETCD_URL for etcd-lock, LOCK_FOLDER "
            "for file-lock, REDLOCK_URLS for redlock, and ZOOKEEPER_HOSTS for zookeeper-lock, to the same value for "
            "web, worker and beat. Unset DATABASE_POOLER for session-lock, insert-lock and lock-table."
        )


class Refusal(InventoryError):
    """Why an order was not saved. The shop's `Save` callback returns it; a strategy raises it for one order."""


class Duplicate(Refusal):
    """The customer has used this idempotency key before.

    Args:
        existing: the id of the order that has the key.
        same: whether both requests have the same body. If so, the new request is a retry, and its answer is the
            existing order.
    """

    def __init__(self, existing: UUID, *, same: bool = True) -> None:
        super().__init__(f"{'already placed as' if same else 'the key belongs to another order,'} order {existing}")
        self.existing = existing
        self.same = same


class OverLimit(Refusal):
    """The customer would have more units of a sku than the sale allows."""

    def __init__(self, sku: str, *, limit: int, taken: int) -> None:
        super().__init__(f"{sku}: at most {limit} per customer, {taken} taken already")
        self.sku = sku
        self.limit = limit
        self.taken = taken


class SaleClosed(Refusal):
    """The sale was closed, postponed or deleted after its prices and limits were read for this order."""

    def __init__(self, sale: int) -> None:
        super().__init__(f"Sale {sale} does not take orders now.")


class UnknownCustomer(Refusal):
    """The customer was deleted, or the account is closed."""

    def __init__(self, customer: int) -> None:
        super().__init__(f"There is no active customer {customer}.")
