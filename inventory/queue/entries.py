"""Encode, parse and check queued orders, which Redis stores in a stream and in reservations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from inventory.counters.whole import text
from inventory.requests import Buyer, OrderRequest, RequestItem

FIELD_TYPES = {"customer": int, "sale": int, "key": str, "body_hash": str}
ITEM_TYPES = {"sku": str, "quantity": int, "name": str}


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An entry of the queue's stream, which holds one order.

    Args:
        entry_id: the id that Redis gave to the entry.
        order_id: None when the entry has no valid order id.
        order: None when the entry cannot be read.
        raw: the text of the order, as the entry stores it.
    """

    entry_id: str
    order_id: UUID | None
    order: OrderRequest | None
    raw: str


def encode(order: OrderRequest) -> str:
    """Return the JSON text of an order, as an entry of the queue stores it."""
    return orjson.dumps(order, default=str).decode()


def new_reservation(order: OrderRequest) -> Mapping[str, Any]:
    """Return the reservation of an order to be queued. `enqueue.lua` adds time, place in the queue and entry id."""
    return {
        "items": [(item.sku, item.quantity, item.limit or 0, str(item.price), item.name) for item in order.items],
        "buyer": buyer_text(order.sale, order.customer),
        "key": order.key,
        "hash": order.body_hash,
        "request": encode(order),
    }


def parse_entry(entry_id: bytes | str, fields: Mapping[bytes | str, bytes | str]) -> QueueEntry:
    """Parse an entry of the stream. It never raises, because one unreadable entry must not stop the worker."""
    values = {_readable(name): _readable(value) for name, value in fields.items()}
    raw = values.get("request", "")
    try:
        order = _decode(raw)
        return QueueEntry(text(entry_id), order.id, order, raw)
    except Exception:
        with suppress(ValueError):
            return QueueEntry(text(entry_id), UUID(values.get("id", "")), None, raw)
        return QueueEntry(text(entry_id), None, None, raw)


def reservation_fields(encoded: bytes | str) -> dict[str, Any]:
    """Return the fields of a reservation; an empty dict if it cannot be read."""
    try:
        fields = orjson.loads(encoded)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def order_from_reservation(order_id: UUID, fields: Mapping[str, Any]) -> OrderRequest | None:
    """Rebuild an order from the fields of its reservation; None if they are missing or invalid.

    Only `created_at` may differ from the original order: it is the time at which the order was queued.
    """
    try:
        sale, customer = parse_buyer(fields["buyer"])
        items = tuple(
            RequestItem(sku, units, Decimal(price), limit or None, name)
            for sku, units, limit, price, name in fields["items"]
        )
        at = datetime.fromtimestamp(fields["at"], UTC)
        return _checked(OrderRequest(order_id, customer, sale, items, fields["key"], fields["hash"], at))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError):
        return None


def buyer_text(sale: int, customer: int) -> str:
    """Return a sale and a customer as Redis stores them: "sale:customer"."""
    return f"{sale}:{customer}"


def parse_buyer(value: str) -> Buyer:
    """Parse "sale:customer" into sale id and customer id."""
    sale, customer = map(int, value.split(":"))
    return sale, customer


def _readable(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _decode(raw: str) -> OrderRequest:
    fields = orjson.loads(raw)
    items = [
        RequestItem(item["sku"], item["quantity"], Decimal(item["price"]), item["limit"], item["name"])
        for item in fields.pop("items")
    ]
    return _checked(
        OrderRequest(
            **{**fields, "id": UUID(fields["id"]), "created_at": datetime.fromisoformat(fields["created_at"])},
            items=tuple(items),
        )
    )


def _checked(order: OrderRequest) -> OrderRequest:
    """Return the order if each of its fields has the right type.

    Without this check, a wrong type would fail only when Postgres saves the order. That error would look like a fault
    of the tables, not of this order, and the worker would stop for all orders.

    Raises:
        ValueError: a field has another type.
    """
    item_fields = [(getattr(item, name), kind) for item in order.items for name, kind in ITEM_TYPES.items()]
    fields = [(getattr(order, name), kind) for name, kind in FIELD_TYPES.items()] + item_fields
    # isinstance() would accept True as an int.
    if any(type(value) is not kind for value, kind in fields):
        raise ValueError("A field of the order has the wrong type.")
    return order
