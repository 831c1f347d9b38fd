"""Receipts: the parts of an order that its customer sees. A receipt is made from the order's row or its request."""

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
    """An item of a receipt: units of one sku, with the name and price at the time of the order."""

    product: int
    sku: str
    name: str
    quantity: int
    price: Decimal
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """An order as its customer sees it.

    Args:
        pk: id of the order, which is also the id of its request.
        reason: why the order was rejected; empty if it was not.
        items: the items, sorted by sku.
        payable_from: the time from which the order can be paid; None while it is queued, and for a rejected or lost
            order that has no row.
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
    """The result of placing an order: the new order, or the order of an earlier request with the same key.

    Args:
        order: the receipt.
        replayed: whether an earlier request has placed the order.
        queued: whether the order is still in the queue, because no worker has saved it yet.
        place: place in the queue, from 1; None if the order is not queued.
    """

    order: Receipt
    replayed: bool
    queued: bool = False
    place: int | None = None


def of_row(order: Order) -> Receipt:
    """Return the receipt of a saved order. Callers prefetch its items and their products to avoid queries here."""
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
    """Return the receipt of a request that was just saved or is queued, without a query.

    Args:
        product_ids: product ids by sku.
        currency: the currency of the sale.
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
