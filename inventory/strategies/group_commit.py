"""`group-commit`: save the orders that wait in one process together, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from django.db import InterfaceError, OperationalError
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled

from inventory import bulk, observing
from inventory.batching import Batcher
from inventory.requests import OrderRequest, Placement, Save
from inventory.strategies.base import Strategy

RETRY_LOCK_TIMEOUT = 0.1
"""Seconds that an order waits for a lock when its batch failed and it is saved alone."""


class GroupCommit(Strategy):
    """One thread of a process saves all orders that are waiting there, while the next batch collects.

    Guarantees: those of `guarded-update`. Orders get units in order of arrival. If one order makes the transaction
    fail, only that order fails.
    Costs: an order may wait for the batch before its own, and 2 ms for others to join. Each process has its own
    batches, which still wait for each other at the row.
    Choose it: first. It needs nothing but Postgres. Row and disk are written once per batch, so an order costs a third
    of what it costs alone, and throughput grows with load.
    """

    name = "group-commit"

    def __init__(self) -> None:
        self.batcher: Batcher[OrderRequest, BaseException | None] = Batcher()

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        refusal = self.batcher.submit(order, partial(commit, save=save))
        if refusal is not None:
            raise refusal
        return Placement.COMMITTED


def commit(
    orders: Sequence[OrderRequest], save: Save, *, lock_timeout: float | None = None
) -> list[BaseException | None]:
    """Save a batch. When its transaction fails, save the orders one by one.

    Args:
        lock_timeout: see `bulk.commit`.

    Returns:
        The reason for each order that got no units.
    """
    observing.observer().batch_saved(len(orders))
    try:
        refusals = bulk.commit(orders, save, lock_timeout=lock_timeout)
    except BaseException as error:
        if len(orders) > 1 and _rolled_back(error):
            # A short one, because all callers of the batch wait.
            return [refusal for order in orders for refusal in commit([order], save, lock_timeout=RETRY_LOCK_TIMEOUT)]
        return [error] * len(orders)
    return [refusals.get(order.id) for order in orders]


def _rolled_back(error: BaseException) -> bool:
    """Return whether nothing was saved. When Postgres did not answer, the batch may be committed: do not retry."""
    if isinstance(error, OperationalError | InterfaceError):
        return isinstance(error.__cause__, LockNotAvailable | QueryCanceled | DeadlockDetected)
    return isinstance(error, Exception)
