"""`group-commit`: who waits together is saved together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from django.db import InterfaceError, OperationalError, connection
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled

from inventory import bulk
from inventory.batching import Batcher
from inventory.requests import OrderRequest, Placement, Save
from inventory.strategies.base import Strategy

AGAIN = 0.1
"""Seconds for which an order that is tried again alone waits for a lock."""


class GroupCommit(Strategy):
    """One request of a process saves for all that wait in it, in one transaction; meanwhile the next group gathers.

    The hot row is written once a group, and the disk is waited for once a group, so it gets faster as more buyers come.
    """

    name = "group-commit"

    def __init__(self) -> None:
        self.batcher: Batcher[OrderRequest, BaseException | None] = Batcher()

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        refusal = self.batcher.submit(order, partial(commit, save=save))
        if refusal is not None:
            raise refusal
        return Placement.COMMITTED


def commit(orders: Sequence[OrderRequest], save: Save) -> list[BaseException | None]:
    """Save a group. An order that makes the transaction fail fails alone: the others are saved.

    Returns:
        Why each order was sold nothing.
    """
    try:
        refusals = bulk.commit(orders, save)
    except BaseException as error:
        if len(orders) > 1 and _is_answer(error):
            with _in_a_hurry():
                return [refusal for order in orders for refusal in commit([order], save)]
        return [error] * len(orders)
    return [refusals.get(order.id) for order in orders]


def _is_answer(error: BaseException) -> bool:
    """Whether nothing was saved. Without an answer from Postgres the group may be, and so may each be on its own."""
    if isinstance(error, OperationalError | InterfaceError):
        return isinstance(error.__cause__, LockNotAvailable | QueryCanceled | DeadlockDetected)
    return isinstance(error, Exception)


@contextmanager
def _in_a_hurry() -> Iterator[None]:
    """Wait only `AGAIN` seconds for a lock: what one order waits for in vain, everybody waits for."""
    try:
        _set(f"SET lock_timeout = '{AGAIN}s'")
        yield
    finally:
        _set("RESET lock_timeout")


def _set(what: str) -> None:
    # Where Postgres does not answer now each order is told so by its own transaction.
    with suppress(OperationalError, InterfaceError), connection.cursor() as cursor:
        cursor.execute(what)
