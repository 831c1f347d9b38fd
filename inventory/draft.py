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
class Line:
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
class Draft:
    """What a customer wants, ready to be taken and saved.

    Args:
        id: UUIDv7, made by the caller, so that an answer lost on the way can be asked for again.
        lines: in the order of their skus, one a sku, whatever order the customer named them in. Locks and rows are
            taken in this order, so that two opposite carts cannot wait for each other.
        key: the customer's idempotency key. `body_hash` tells a retry from another order under the same key.
    """

    id: UUID
    customer: int
    sale: int
    lines: tuple[Line, ...]
    key: str
    body_hash: str
    created_at: datetime

    @property
    def skus(self) -> list[str]:
        """Of the lines, in their order."""
        return [line.sku for line in self.lines]

    def __post_init__(self) -> None:
        if not self.skus or self.skus != sorted(set(self.skus)):
            raise ValueError("A draft needs lines in the order of their skus, one a sku.")
        if any(line.quantity < 1 for line in self.lines):
            raise ValueError("A line needs a quantity of at least 1.")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an order is safe when the strategy answers.

    Args:
        place: in the queue in Redis, from 1: its rows follow. None: it is `COMMITTED`, in Postgres.
    """

    COMMITTED: ClassVar[Placement]

    place: int | None = None


Placement.COMMITTED = Placement()


Save = Callable[[Sequence[Draft]], Mapping[UUID, Refusal]]
"""Writes many orders inside the transaction that is open, in a fixed number of statements.

What it refuses it undoes, and answers with the reason by the draft's id. It closes over no request.
"""


Reject = Callable[[Mapping["Draft", str]], None]
"""Writes orders that somebody was promised and that are sold nothing, with the reason, in the transaction that is open.

It does so once, however often it is called.
"""

Saved = Callable[[Collection[UUID]], set[UUID]]
"""Which of these drafts were sold, in whatever state their orders are now; one that was rejected never was."""

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


def save_one(draft: Draft, save: Save) -> None:
    """Save a single order inside the transaction that is open.

    Raises:
        Refusal: why it was not written; the caller's transaction rolls back.
    """
    refusal = save([draft]).get(draft.id)
    if refusal is not None:
        raise refusal
