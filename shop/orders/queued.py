"""Save queued orders in Postgres. Celery's workers call this."""

from __future__ import annotations

import math

from inventory.strategies import registry
from shop.orders.saving import reject, save_from_queue
from shop.sold import saved

SHIFT = 2.0
"""Seconds after which a task stops saving queued orders, so that the worker can also run periodic tasks."""


def save_queued(*, shift: float = math.inf) -> int:
    """Save queued orders until the queue is empty, or for `shift` seconds.

    Returns:
        The number of orders taken off the queue.
    """
    return registry.work(save_from_queue, reject, saved, shift=shift)
