"""`group-commit`: save all orders that wait in one process together, in one statement or transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from inventory import bulk, observing
from inventory.batching import Batcher
from inventory.requests import OrderRequest, Placement, Save, was_rolled_back
from inventory.strategies.base import Strategy

RETRY_LOCK_TIMEOUT = 0.1
"""Lock timeout in seconds for an order that is saved alone, after its batch has failed."""


class GroupCommit(Strategy):
    """One thread of a process saves all waiting orders of the process.

    Orders that arrive meanwhile form the next batch.

    Guarantees: no unit is sold twice, as with `guarded-update`. Orders get units in order of arrival. If one order
    causes an error in Postgres, only that order fails.
    Costs: an order may wait for the previous batch to end, and then 2 or 4 ms for other orders to join its own batch.
    Batches of different processes wait for each other's lock of the stock row.
    Choose it: by default. It needs only Postgres. Row and disk are written once per batch, so an order costs half as
    much as alone, and throughput grows with load.
    """

    name = "group-commit"

    def __init__(self) -> None:
        self.batcher: Batcher[OrderRequest, BaseException | None] = Batcher(waited=observing.batch_waited)

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        refusal = self.batcher.submit(order, partial(commit, save=save))
        if refusal is not None:
            raise refusal
        return Placement.COMMITTED


def commit(
    orders: Sequence[OrderRequest], save: Save, *, lock_timeout: float | None = None
) -> list[BaseException | None]:
    """Save a batch. If an error rolls the batch back, save its orders one by one.

    Args:
        lock_timeout: see `bulk.commit`.

    Returns:
        For each order the reason why it got no units, or None.
    """
    for observer in observing.observers():
        observer.batch_saved(len(orders))
    try:
        refusals = bulk.commit(orders, save, lock_timeout=lock_timeout)
    except BaseException as error:
        if len(orders) > 1 and was_rolled_back(error):
            # Use a short lock timeout, because all callers of the batch wait for these retries.
            return [refusal for order in orders for refusal in commit([order], save, lock_timeout=RETRY_LOCK_TIMEOUT)]
        return [error] * len(orders)
    return [refusals.get(order.id) for order in orders]
