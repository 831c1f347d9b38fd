"""Make order ids, and recognise them later even if no server has the order any more.

An id is a UUIDv7 whose last 32 bits are a keyed hash of the other bits and of the customer's id. The hash shows that
the shop made the id for this customer, so no list of ids is needed.

This matters for a lost order: Redis may lose an order before it is saved, and Postgres may be restored to an older
state.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from uuid import UUID

import uuid_utils.compat
from django.conf import settings

VERSION = 7
"""The version of the UUIDs."""
HASHED = 4
"""Length of the keyed hash in bytes. A short hash is enough: it only keeps customers from making up ids.

A customer who guesses the hash of a made-up id sees the page of a lost order, and gains nothing.
"""


def new_order_id(customer: int, at: datetime) -> UUID:
    """Return a new id of an order.

    Args:
        at: when the order was placed.
    """
    made = uuid_utils.compat.uuid7(nanoseconds=int(at.timestamp() * 1e9)).bytes[:-HASHED]
    return UUID(bytes=made + _hash(made, customer))


def is_of(order: UUID, customer: int) -> bool:
    """Return whether `new_order_id` made this id for this customer."""
    return order.bytes[-HASHED:] == _hash(order.bytes[:-HASHED], customer)


def placed_at(order: UUID) -> datetime:
    """Return when an order was placed, from its id."""
    return datetime.fromtimestamp(placed_seconds(order), UTC)


def placed_seconds(order: UUID) -> float:
    """Return when an order was placed, in seconds since 1970, from its id. An id from elsewhere may have any value."""
    return (order.int >> 80) / 1000


def _hash(made: bytes, customer: int) -> bytes:
    return hashlib.blake2b(made + b"%d" % customer, digest_size=HASHED, key=_key(settings.SECRET_KEY)).digest()


@cache
def _key(secret: str) -> bytes:
    return hashlib.sha256(b"order id " + secret.encode()).digest()
