"""What a customer is told of an order, whether it is a row by now or is still on its way to be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from inventory.requests import OrderRequest
from shop.models import Order, Product

RequestKey = tuple[int, str]
"""Customer id and idempotency key: identifies one order request."""


@dataclass(frozen=True, slots=True)
class Item:
    """So many units of one sku, at the price of the moment."""

    product: int
    sku: str
    name: str
    quantity: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class Receipt:
    """An order as its customer sees it. A value: an order that was just saved is told without asking for it again.

    Args:
        pk: the order's, which is its request's.
        reason: why it was rejected.
        items: in the order of their skus.
        payable_from: None for one that is queued: nobody can pay it yet.
    """

    pk: UUID
    sale: int
    state: str
    reason: str
    body_hash: str
    items: tuple[Item, ...]
    created_at: datetime
    payable_from: datetime | None

    @property
    def total(self) -> Decimal:
        """What it costs."""
        return sum((item.price * item.quantity for item in self.items), Decimal())


@dataclass(frozen=True, slots=True)
class Placed:
    """The order that a request key stands for.

    Args:
        order: as it was saved, or will be.
        replayed: an earlier request with the same key placed it.
        queued: a worker has yet to save its row.
        place: its place in the queue, from 1.
    """

    order: Receipt
    replayed: bool
    queued: bool = False
    place: int | None = None


def of_row(order: Order) -> Receipt:
    """The receipt of an order that is saved. Its items and their products are at hand, or are asked for."""
    items = (
        Item(item.product.pk, item.product_id, item.product.name, item.quantity, item.price)
        for item in order.items.all()
    )
    return Receipt(
        order.pk,
        order.sale_id,
        str(order.state),
        order.reason,
        order.body_hash,
        tuple(sorted(items, key=lambda item: item.sku)),
        order.created_at,
        order.payable_from,
    )


def of_request(request: OrderRequest, products: Mapping[str, Product], *, queued: bool) -> Receipt:
    """The receipt of an order as it was saved or will be.

    Args:
        products: by sku.
    """
    return Receipt(
        request.id,
        request.sale,
        "pending",
        "",
        request.body_hash,
        tuple(
            [
                Item((product := products[item.sku]).pk, item.sku, product.name, item.quantity, item.price)
                for item in request.items
            ]
        ),
        request.created_at,
        None if queued else request.created_at,
    )
