"""The errors of taking stock. After any of them, nothing was sold."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID


class InventoryError(Exception):
    """The order was not placed. Nothing was sold."""


class SoldOut(InventoryError):
    """Too few units are left. A retry helps only if units come back."""

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
    """A temporary failure. It says nothing about the units left: try again."""


class StockBusy(TryAgain):
    """The lock was not granted in time."""


class StockElsewhere(TryAgain):
    """Enough units are on hand, but not as unsplit stock: another sale has split them, or they were just returned."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"{sku} is split for another sale, or units have just been returned. Try again.")
        self.sku = sku


class StockConflict(TryAgain):
    """Other orders changed the row before each of the attempts to write it."""


class StockReserved(TryAgain):
    """The units left are reserved for orders that are not saved yet. These orders may still fail."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"{sku}: the units left are reserved for other orders. Try again.")
        self.sku = sku


class StockNotLoaded(TryAgain):
    """The strategy has no copy of the sku's stock: preheat its sale."""


class StockUnavailable(TryAgain):
    """A server that the strategy needs did not answer."""


class UnknownStrategy(StockUnavailable):
    """This process has no strategy of that name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"Unknown strategy {name}; this process has {', '.join(known)}. etcd-lock, file-lock, redlock and "
            "zookeeper-lock need ETCD_URL, LOCK_FOLDER, REDLOCK_URLS and ZOOKEEPER_HOSTS: set them to the same values "
            "for web, worker and beat. session-lock, insert-lock and lock-table cannot be used with DATABASE_POOLER."
        )


class Refusal(InventoryError):
    """The reason why `Save` did not write an order. Returned by `Save`; raised by a strategy for a single order."""


class Duplicate(Refusal):
    """The customer has used this idempotency key before.

    Args:
        existing: the id of the order that has the key.
        same: whether the bodies are the same, so that the existing order is the answer.
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
    """The sale was closed, postponed or deleted since its offer was read."""

    def __init__(self, sale: int) -> None:
        super().__init__(f"Sale {sale} does not take orders now.")


class UnknownCustomer(Refusal):
    """The customer was deleted, or the account is closed."""

    def __init__(self, customer: int) -> None:
        super().__init__(f"There is no active customer {customer}.")
