"""Receipts: what a customer sees of an order, from its row or from the request that will become an order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from inventory.requests import OrderRequest
from shop.models import Order

RequestKey = tuple[int, str]
"""Customer id and idempotency key: identifies one order request."""


@dataclass(frozen=True, slots=True)
class ReceiptItem:
    """Units of one sku, with the name and the price when the order was placed."""

    product: int
    sku: str
    name: str
    quantity: int
    price: Decimal
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """An order as its customer sees it. For an order that was just saved it is made without a query.

    Args:
        pk: id of the order and of its request.
        reason: why it was rejected; empty otherwise.
        items: sorted by sku.
        payable_from: None while the order is queued and cannot be paid.
    """

    pk: UUID
    sale: int
    state: str
    reason: str
    body_hash: str
    items: tuple[ReceiptItem, ...]
    currency: str
    created_at: datetime
    payable_from: datetime | None

    @property
    def total(self) -> Decimal:
        return sum((item.price * item.quantity for item in self.items), Decimal())


@dataclass(frozen=True, slots=True)
class Placed:
    """The order that a request, or an earlier request with the same key, has placed.

    Args:
        order: as it was saved, or will be saved by a worker.
        replayed: an earlier request has placed it.
        queued: a worker has not saved it yet.
        place: place in the queue, from 1.
    """

    order: Receipt
    replayed: bool
    queued: bool = False
    place: int | None = None


def of_row(order: Order) -> Receipt:
    """Return the receipt of a saved order. Prefetch its items and their products to avoid a query."""
    items = (
        ReceiptItem(item.product.pk, item.product_id, item.name, item.quantity, item.price, item.returned)
        for item in order.items.all()
    )
    return Receipt(
        order.pk,
        order.sale_id,
        str(order.state),
        order.reason,
        order.body_hash,
        tuple(sorted(items, key=lambda item: item.sku)),
        order.currency,
        order.created_at,
        order.payable_from,
    )


def of_request(request: OrderRequest, product_ids: Mapping[str, int], *, currency: str, queued: bool) -> Receipt:
    """Return the receipt of a request that was saved or is queued.

    Args:
        product_ids: by sku.
        currency: of the sale.
    """
    return Receipt(
        request.id,
        request.sale,
        "pending" if any(item.price for item in request.items) else "paid",
        "",
        request.body_hash,
        tuple(
            [
                ReceiptItem(product_ids[item.sku], item.sku, item.name, item.quantity, item.price)
                for item in request.items
            ]
        ),
        currency,
        request.created_at,
        None if queued else request.created_at,
    )
