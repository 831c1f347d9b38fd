"""Save queued orders: what Celery's workers run."""

from __future__ import annotations

import math

from inventory.strategies import registry
from shop import clock
from shop.orders.saving import reject, save
from shop.sold import saved

SHIFT = 2.0
"""Seconds for which one task saves queued orders. Other tasks, which run every few seconds, need the worker too."""


def save_queued(*, shift: float = math.inf) -> int:
    """Save queued orders until the queue is empty, or for `shift` seconds.

    Returns:
        The number of orders taken off the queue.
    """
    return registry.work(lambda requests: save(requests, payable_from=clock.now()), reject, saved, shift=shift)
