"""Selling from the counter in Redis. Forked client processes use this too, and set up no Django."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from lab.checkers.counter import SOLD, STOCK
from locking.lock import Lock


def sell(client: Any, lock: Lock, inside: AbstractContextManager[None]) -> str:
    """Sell one unit by GET and SET: only the lock keeps clients from overwriting each other.

    Args:
        client: redis-py's client.
        lock: the lock object of this client.
        inside: entered when the lock is granted, and left when the unit is sold.

    Returns:
        What the buyer is told.
    """
    with lock.hold(), inside:
        client.set(STOCK, int(client.get(STOCK)) - 1)
    return SOLD
