"""Flawed way of selling: the function returns before it reaches the line that commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, locked, take


@contextmanager
def _request() -> Iterator[None]:
    """End as a web request does: if the block leaves a transaction open, Postgres rolls it back."""
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


class CommitAfterReturn(StockRung):
    """Flawed: the function returns before it commits, so Postgres rolls back all that it has done.

    Lock, check, subtraction and order are all right. The schedule that breaks it needs no second client:
    client A takes the last unit, writes the order, and is told that they have bought. The transaction is still open. At
    the end of the request it is rolled back. The unit is for sale again, and A has no order.

    Until then the row of the stock is locked. If a request's end did not end the transaction, the next customer would
    wait.

    Fixed by a `with` block, which also commits when `return` leaves it: `redis-lock`. Source: article 002 (section 2),
    whose first listing has this flaw.
    """

    slug = "commit-after-return"
    title = "Commit after the return"
    flaw = "The customer is told that they have bought, and the order is rolled back."
    breaks = "once"
    fixed_by = "redis-lock"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:  # noqa: RET503 - the last line is the flaw
        with _request(), locked(*(item.sku for item in order.items)):
            transaction.set_autocommit(False)
            for item in order.items:
                take(item)
            save_one(order, save)
            return Placement.COMMITTED
            transaction.commit()
