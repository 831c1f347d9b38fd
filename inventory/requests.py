"""Order requests, and the callbacks with which a strategy saves them. Shop and strategies share these types."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from django.db import InterfaceError, OperationalError
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled

from inventory import observing
from inventory.errors import Refusal


@dataclass(frozen=True, slots=True)
class RequestItem:
    """Units of one sku, with the price, the limit and the product's name at the time of the request.

    Args:
        quantity: units, at least 1.
        price: the price of one unit.
        limit: units that a customer may have of the sku in this sale; None for no limit.
        name: product name to store in the order; not needed to take stock.
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
        id: UUIDv7, made by the caller, so that the order can be looked up even if the answer was lost.
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
        """The sku of each item, in the order of the items."""
        return [item.sku for item in self.items]

    @property
    def units(self) -> dict[str, int]:
        """The units of each sku."""
        return {item.sku: item.quantity for item in self.items}

    def __post_init__(self) -> None:
        if not self.skus or self.skus != sorted(set(self.skus)):
            raise ValueError("An order needs at least one item, one per sku, sorted by sku.")
        if any(item.quantity < 1 for item in self.items):
            raise ValueError("An item needs a quantity of at least 1.")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an accepted order is stored: committed in Postgres (`COMMITTED`), or on the queue in Redis.

    Args:
        place: the order's place in the queue, from 1; a worker saves the order later. None for a committed order.
    """

    COMMITTED: ClassVar[Placement]
    """The order is committed in Postgres."""

    place: int | None = None


Placement.COMMITTED = Placement()


Save = Callable[[Sequence[OrderRequest]], Mapping[UUID, Refusal]]
"""Callback that writes orders in the open transaction, in a fixed number of statements.

It returns the refusals by order id, and writes nothing for refused orders. A batch has the orders of several
callers, and the callback of one of them saves it.
"""


@dataclass(frozen=True, slots=True)
class Taking:
    """The UPDATE with which a strategy takes the stock of some orders.

    It becomes part of the statement that saves them.

    Args:
        sql: updates the stock rows that have enough units. It ends with its WHERE clause, so that `AND …` can be
            appended.
        arguments: the values of its parameters.
        rows: the number of rows that it changes if every sku has enough units.
    """

    sql: str
    arguments: Mapping[str, Any]
    rows: int


class SaveAtOnce(ABC):
    """A `Save` callback that can also take the stock and save the orders in one statement.

    The statement commits by itself, so no stock row stays locked while Postgres waits for the client.
    """

    @abstractmethod
    def __call__(self, orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]: ...

    @abstractmethod
    def at_once(self, orders: Sequence[OrderRequest], taking: Taking) -> bool:
        """Take the stock of all orders, save them and commit; or change nothing. Call it outside any transaction.

        Returns:
            Whether the orders are saved. If not, save them step by step in a transaction, to find out which are
            refused, and why.
        """


Reject = Callable[[Mapping[OrderRequest, str]], None]
"""Callback that writes queued orders as rejected, with the reason, in the open transaction. Idempotent."""

Saved = Callable[[Collection[UUID]], set[UUID]]
"""Callback that returns which of these orders were saved as sold, even if they ended later.

It does not return orders that were saved as rejected. It accepts any number of ids, because a queue may be long.
"""

Buyer = tuple[int, int]
"""A customer in one sale: sale id and customer id."""

Taken = Callable[[str, Collection[int]], Mapping[Buyer, int]]
"""Callback that returns the units of a sku that each customer of these sales has in valid orders."""


@dataclass(frozen=True, slots=True)
class ReturnedUnits:
    """Units that a cancelled or expired order returns; negative if a late payment takes them again."""

    sale: int
    customer: int
    sku: str
    quantity: int


@dataclass(frozen=True, slots=True)
class QueuedOrder:
    """What Redis knows of an order that was queued and is not saved.

    Args:
        order: None when the order is no longer on the queue.
        place: its place in the queue, from 1.
        existing: the id of the order that was saved instead.
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


def save_at_once(orders: Sequence[OrderRequest], save: Save, taking: Taking) -> bool:
    """Take the stock of orders and save them in one statement, see `SaveAtOnce.at_once`. Return whether they are saved.

    Return False, too, if `save` is no `SaveAtOnce`.
    """
    if not isinstance(save, SaveAtOnce):
        return False
    began = time.monotonic()
    saved = save.at_once(orders, taking)
    if saved:
        observing.committed(time.monotonic() - began)
    return saved


def save_one(order: OrderRequest, save: Save) -> None:
    """Save one order in the open transaction. Call it last, just before the commit.

    Raises:
        Refusal: the order was not written. The caller's transaction rolls back.
    """
    refusal = save([order]).get(order.id)
    if refusal is not None:
        raise refusal
    observing.measure_commit()


def was_rolled_back(error: BaseException) -> bool:
    """Return whether an error shows that nothing was saved.

    If Postgres did not answer, the order may be committed. Then do not save it again, and do not return its units.
    """
    if isinstance(error, OperationalError | InterfaceError):
        return isinstance(error.__cause__, LockNotAvailable | QueryCanceled | DeadlockDetected)
    return isinstance(error, Exception)
