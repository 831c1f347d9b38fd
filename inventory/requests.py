"""An order before it is one: the values that pass between the shop and a strategy."""

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
    """So many units of one sku, at the price and under the limit of the moment.

    Args:
        quantity: units, at least 1.
        price: of one unit.
        limit: units a customer may have of the sku in this sale; None for any number.
    """

    sku: str
    quantity: int
    price: Decimal
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What a customer wants, ready to be taken and saved.

    Args:
        id: UUIDv7, made by the caller, so that an answer lost on the way can be asked for again.
        items: in the order of their skus, one a sku, whatever order the customer named them in. Locks and rows are
            taken in this order, so that two opposite carts cannot wait for each other.
        key: the customer's idempotency key. `body_hash` tells a retry from another order under the same key.
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
        """Of the items, in their order."""
        return [item.sku for item in self.items]

    def __post_init__(self) -> None:
        if not self.skus or self.skus != sorted(set(self.skus)):
            raise ValueError("A request needs items in the order of their skus, one a sku.")
        if any(item.quantity < 1 for item in self.items):
            raise ValueError("A item needs a quantity of at least 1.")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an order is safe when the strategy answers.

    Args:
        place: in the queue in Redis, from 1: its rows follow. None: it is `COMMITTED`, in Postgres.
    """

    COMMITTED: ClassVar[Placement]

    place: int | None = None


Placement.COMMITTED = Placement()


Save = Callable[[Sequence[OrderRequest]], Mapping[UUID, Refusal]]
"""Writes many orders inside the transaction that is open, in a fixed number of statements.

What it refuses it undoes, and answers with the reason by the request's id. It closes over no request.
"""


Reject = Callable[[Mapping["OrderRequest", str]], None]
"""Writes orders that somebody was promised and that are sold nothing, with the reason, in the transaction that is open.

It does so once, however often it is called.
"""

Saved = Callable[[Collection[UUID]], set[UUID]]
"""Which of these requests were sold, in whatever state their orders are now; one that was rejected never was."""

Buyer = tuple[int, int]
"""The ids of a sale and of a customer who buys in it."""

Taken = Callable[[str, Collection[int]], Mapping[Buyer, int]]
"""How many units of a sku each customer of these sales has by orders that stand."""


@dataclass(frozen=True, slots=True)
class Returned:
    """Units that an order has no more: it was cancelled or has expired. Negative when it was paid late and has them."""

    sale: int
    customer: int
    sku: str
    quantity: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of a queued request that has no order yet.

    Args:
        request: the request; None when it is not queued any more.
        place: its place in the queue, from 1.
        instead: the id of the order that took its place.
        reason: why it was rejected, when there is no order and will be none.
        sale: of a rejected request.
        customer: customer id of a rejected request.
        body_hash: hash of the request body of a rejected request.
    """

    request: OrderRequest | None = None
    place: int = 0
    instead: UUID | None = None
    reason: str = ""
    sale: int = 0
    customer: int = 0
    body_hash: str = ""


def save_one(request: OrderRequest, save: Save) -> None:
    """Save a single order inside the transaction that is open.

    Raises:
        Refusal: why it was not written; the caller's transaction rolls back.
    """
    refusal = save([request]).get(request.id)
    if refusal is not None:
        raise refusal
