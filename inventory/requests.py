"""What a customer asked for, as values that pass between the shop and a strategy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import ClassVar
from uuid import UUID

from inventory.errors import Refusal


@dataclass(frozen=True, slots=True)
class RequestItem:
    """Units of one sku, with the price, the limit and the product's name at the time of the request.

    Args:
        quantity: units, at least 1.
        price: the price of one unit.
        limit: units that a customer may have of the sku in this sale; None for no limit.
        name: name of the product, which the order keeps. Taking stock does not need it.
    """

    sku: str
    quantity: int
    price: Decimal
    limit: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """An order that is not saved yet.

    Args:
        id: UUIDv7, made by the caller, so that an order whose answer was lost can be looked up.
        items: sorted by sku, one per sku. Strategies take locks and rows in this order, so that two orders for the same
            skus cannot deadlock.
        key: the customer's idempotency key. `body_hash` tells a retry from a different order with the same key.
    """

    id: UUID
    customer: int
    sale: int
    items: tuple[RequestItem, ...]
    key: str
    body_hash: str
    created_at: datetime

    @property
    def skus(self) -> list[str]:
        """The skus of the items, in their order."""
        return [item.sku for item in self.items]

    def __post_init__(self) -> None:
        if not self.skus or self.skus != sorted(set(self.skus)):
            raise ValueError("An order needs at least one item, one per sku, sorted by sku.")
        if any(item.quantity < 1 for item in self.items):
            raise ValueError("An item needs a quantity of at least 1.")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an order is stored when a strategy returns.

    Args:
        place: the order's place in the queue in Redis, from 1; a worker saves it later. None when it is `COMMITTED`.
    """

    COMMITTED: ClassVar[Placement]
    """The order is committed in Postgres."""

    place: int | None = None


Placement.COMMITTED = Placement()


Save = Callable[[Sequence[OrderRequest]], Mapping[UUID, Refusal]]
"""Write orders in the open transaction, in a fixed number of statements.

Returns the refusals by order id; refused orders leave nothing behind. The `Save` of one request can write another.
"""

Reject = Callable[[Mapping[OrderRequest, str]], None]
"""Write queued orders that cannot be sold as rejected, with the reason, in the open transaction. Idempotent."""

Saved = Callable[[Collection[UUID]], set[UUID]]
"""Return which of these orders were saved and sold, whatever their state is now. Rejected orders were never sold."""

ASKED_AT_ONCE = 10_000
"""Orders that `Saved` is asked about in one call: Postgres takes at most 65,535 parameters."""


def saved_among(saved: Saved, orders: Collection[UUID]) -> set[UUID]:
    """Ask `Saved` about any number of orders, as many as a long queue has."""
    ids, found = list(orders), set[UUID]()
    for start in range(0, len(ids), ASKED_AT_ONCE):
        found |= saved(ids[start : start + ASKED_AT_ONCE])
    return found


Buyer = tuple[int, int]
"""A customer in one sale: sale id and customer id."""

Taken = Callable[[str, Collection[int]], Mapping[Buyer, int]]
"""Return the units of a sku that each customer of these sales has in valid orders."""


@dataclass(frozen=True, slots=True)
class ReturnedUnits:
    """Units of an order that was cancelled or has expired; negative if it was paid late and took them again."""

    sale: int
    customer: int
    sku: str
    quantity: int


@dataclass(frozen=True, slots=True)
class QueuedOrder:
    """What Redis knows of an order that was queued and not saved.

    Args:
        order: None when the order is no longer on the queue.
        place: its place in the queue, from 1.
        existing: the id of the order that was saved in its place.
        reason: why it was rejected.
        sale: sale id of a rejected order.
        customer: customer id of a rejected order.
        body_hash: hash of the request body of a rejected order.
    """

    order: OrderRequest | None = None
    place: int = 0
    existing: UUID | None = None
    reason: str = ""
    sale: int = 0
    customer: int = 0
    body_hash: str = ""


def save_one(order: OrderRequest, save: Save) -> None:
    """Save one order in the open transaction.

    Raises:
        Refusal: the order was not written. The caller's transaction rolls back.
    """
    refusal = save([order]).get(order.id)
    if refusal is not None:
        raise refusal
