"""Sell from the counter in Redis. Forked clients also import this module, and they do not set up Django."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from lab.checkers.counter import SOLD, STOCK
from locking.lock import Lock


def sell(client: Any, lock: Lock, inside: AbstractContextManager[None]) -> str:
    """Sell one unit by GET and SET. Only the lock keeps clients from overwriting each other's writes.

    Args:
        client: redis-py's client.
        lock: the lock object of this client.
        inside: context manager for the critical section, from the grant of the lock to the sale.

    Returns:
        The answer of the client.
    """
    with lock.hold(), inside:
        client.set(STOCK, int(client.get(STOCK)) - 1)
    return SOLD
