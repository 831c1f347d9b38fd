"""What can go wrong when stock is taken, in the words of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID


class InventoryError(Exception):
    """Something kept the order from being placed. Nothing was sold."""


class SoldOut(InventoryError):
    """There is not enough left. Trying again helps only when somebody gives units back."""

    def __init__(self, sku: str, *, wanted: int, left: int) -> None:
        super().__init__(f"{sku}: {wanted} wanted, {left} left")
        self.sku = sku
        self.wanted = wanted
        self.left = left


class NotThatMany(InventoryError):
    """A correction would take away more than is on hand."""

    def __init__(self, sku: str, *, wanted: int, left: int) -> None:
        super().__init__(f"{sku}: {wanted} to be taken away, {left} on hand")
        self.sku = sku
        self.wanted = wanted
        self.left = left


class TryAgain(InventoryError):
    """The stock could not be asked. This says nothing about what is left: try again."""


class StockBusy(TryAgain):
    """No lock within the time allowed."""


class StockElsewhere(TryAgain):
    """Enough is on hand, but not in the pool: it is split up for another sale, or came back since the pool was read."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"{sku} is split up for another sale, or some came back just now.")
        self.sku = sku


class StockConflict(TryAgain):
    """Others were faster each time, until the retries were used up."""


class StockReserved(TryAgain):
    """What is left is reserved for orders that are not saved yet: they are sold it, or it comes back."""

    def __init__(self, sku: str) -> None:
        super().__init__(f"{sku}: what is left is reserved for others.")
        self.sku = sku


class StockNotLoaded(TryAgain):
    """The sku has no counter in Redis: preheat its sale."""


class StockUnavailable(TryAgain):
    """The server that the strategy needs did not answer."""


class UnknownStrategy(StockUnavailable):
    """No strategy of that name is known to this process."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"There is no strategy {name} in this process, only {', '.join(known)}. Those over a server of their own "
            "are there where ETCD_URL, LOCK_FOLDER, REDLOCK_URLS or ZOOKEEPER_HOSTS says where it is: set them alike "
            "for web, worker and beat."
        )


class Refusal(InventoryError):
    """Why `Save` did not write an order. A value in its answer; a strategy raises it for a single order."""


class Duplicate(Refusal):
    """The customer has used this idempotency key before.

    Args:
        existing: the id of the order that has the key.
        same: the bodies are the same, so that order is what is asked for.
    """

    def __init__(self, existing: UUID, *, same: bool = True) -> None:
        super().__init__(f"{'already placed as' if same else 'the key belongs to another order,'} order {existing}")
        self.existing = existing
        self.same = same


class OverLimit(Refusal):
    """The customer would have more of a sku than the sale allows."""

    def __init__(self, sku: str, *, limit: int, taken: int) -> None:
        super().__init__(f"{sku}: at most {limit} per customer, {taken} taken already")
        self.sku = sku
        self.limit = limit
        self.taken = taken


class SaleClosed(Refusal):
    """The sale was closed or postponed, or is no more, since its offer was read."""

    def __init__(self, sale: int) -> None:
        super().__init__(f"Sale {sale} takes no orders now.")


class UnknownCustomer(Refusal):
    """There is no such customer any more, or the account is closed."""

    def __init__(self, customer: int) -> None:
        super().__init__(f"There is no active customer {customer}.")
