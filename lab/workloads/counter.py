"""The counter in Redis that the clients of a lock sell from. Light enough for a process that knows no Django."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from locking.lock import Lock

STOCK = "stock"
UNITS = 10
SOLD = "sold"


def sell(client: Any, lock: Lock, at_work: AbstractContextManager[None]) -> str:
    """Sell one unit by GET and SET: only the lock stands between the clients.

    Args:
        client: redis-py's.
        lock: that of the client who sells.
        at_work: entered when the lock is granted, and left when the unit is sold.

    Returns:
        What the buyer is told.
    """
    with lock.hold(), at_work:
        client.set(STOCK, int(client.get(STOCK)) - 1)
    return SOLD
