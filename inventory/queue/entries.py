"""Encode, parse and check queued orders, which Redis stores in a stream and in reservations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from inventory.counters.whole import text
from inventory.requests import Buyer, OrderRequest

# Check each type here. A wrong type would otherwise fail only when Postgres saves the order. That error would look like
# a fault of the tables, not of this order, and the worker would stop for all orders.
ORDER = msgspec.json.Decoder(OrderRequest)


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An entry of the queue's stream, which holds one order.

    Args:
        entry_id: the id that Redis gave to the entry.
        order_id: None when the entry has no valid order id.
        order: None when the entry cannot be read.
        raw: the text of the order, as the entry stores it.
        trace: the `traceparent` of the request that has queued the order; empty for a request that was not traced.
    """

    entry_id: str
    order_id: UUID | None
    order: OrderRequest | None
    raw: str
    trace: str = ""

    @property
    def trace_id(self) -> str:
        """The trace id of the request that has queued the order; empty for a request that was not traced."""
        return self.trace[3:35]

    def age(self, now: float) -> float:
        """Return how many seconds the order has been in the queue.

        Args:
            now: seconds since 1970. If this clock is behind that of Redis, the age may be 0.
        """
        return max(0.0, now - int(self.entry_id.partition("-")[0]) / 1000)


def encode(order: OrderRequest) -> str:
    """Return the JSON text of an order, as an entry of the queue stores it."""
    return msgspec.json.encode(order).decode()


def new_reservation(order: OrderRequest, trace: str = "") -> Mapping[str, Any]:
    """Return the reservation of an order to be queued. `enqueue.lua` adds time, place in the queue and entry id."""
    # Store the trace beside the order, not in it: a worker of an earlier version can then still read the order.
    return {
        **({"trace": trace} if trace else {}),
        "items": [(item.sku, item.quantity, item.limit or 0, str(item.price), item.name) for item in order.items],
        "buyer": buyer_text(order.sale, order.customer),
        "key": order.key,
        "hash": order.body_hash,
        "request": encode(order),
    }


def parse_entry(entry_id: bytes | str, fields: Mapping[bytes | str, bytes | str]) -> QueueEntry:
    """Parse an entry of the stream. It never raises, because one unreadable entry must not stop the worker."""
    values = {_readable(name): _readable(value) for name, value in fields.items()}
    raw, trace = values.get("request", ""), values.get("trace", "")
    try:
        order = ORDER.decode(raw)
        return QueueEntry(text(entry_id), order.id, order, raw, trace)
    except Exception:
        with suppress(ValueError):
            return QueueEntry(text(entry_id), UUID(values.get("id", "")), None, raw, trace)
        return QueueEntry(text(entry_id), None, None, raw, trace)


def reservation_fields(encoded: bytes | str) -> dict[str, Any]:
    """Return the fields of a reservation; an empty dict if it cannot be read."""
    try:
        fields = msgspec.json.decode(encoded)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def order_from_reservation(order_id: UUID, fields: Mapping[str, Any]) -> OrderRequest | None:
    """Rebuild an order from the fields of its reservation; None if they are missing or invalid.

    Only `created_at` may differ from the original order: it is the time at which the order was queued.
    """
    try:
        sale, customer = parse_buyer(fields["buyer"])
        items = [
            {"sku": sku, "quantity": units, "price": price, "limit": limit or None, "name": name}
            for sku, units, limit, price, name in fields["items"]
        ]
        order = {
            "id": order_id,
            "customer": customer,
            "sale": sale,
            "items": items,
            "key": fields["key"],
            "body_hash": fields["hash"],
            "created_at": datetime.fromtimestamp(fields["at"], UTC),
        }
        return msgspec.convert(order, OrderRequest)
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
