"""Reconcile Redis with Postgres: repair the differences that crashed processes have left."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django.conf import settings
from django.db import DatabaseError, Error, connection
from redis import RedisError

from inventory import reconcile as inventory
from inventory.outages import is_away
from inventory.reconcile import Repair
from shop import reconciliations
from shop.conservation import broken
from shop.orders.queued import SHIFT, save_queued
from shop.orders.saving import reject
from shop.sold import saved, taken

logger = logging.getLogger(__name__)

# When two sales offer the same sku, the sale that opens first sells it. Sort the row of that sale last: `sellers` keeps
# the last row of each sku. Use plain SQL, because it is fast: each reconciliation runs this statement four to six
# times, and the search of the lab reconciles thousands of times.
SELLERS = """
    SELECT sku, strategy
      FROM shop_saleitem
      JOIN shop_product ON shop_product.id = product_id
      JOIN shop_sale ON shop_sale.id = sale_id
     WHERE closes_at > statement_timestamp()
       AND (opens_at <= statement_timestamp() OR (preheated_at IS NOT NULL AND unloaded_at IS NULL))
     ORDER BY opens_at DESC, sale_id DESC
"""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The repairs of a reconciliation, and the skus that broke the conservation law before and after them."""

    before: list[str]
    repairs: list[Repair]
    after: list[str]

    @property
    def units(self) -> int:
        """The number of units by which copies of the stock in Redis were wrong."""
        return sum(abs(repair.units) for repair in self.repairs)


def reconcile(*, grace: float | None = None) -> list[Repair]:
    """Save queued orders, and repair the differences between Redis and Postgres that crashed processes have left.

    Args:
        grace: age in seconds from which a reservation without an order is released; None means `RECONCILE_GRACE`.

    Raises:
        RedisError, django.db.Error: a server does not answer. The other kinds of repair were tried. Finished repairs
            stay.
        Exception: the first error of another kind, after all repairs were tried.
    """
    unexpected: Exception | None = None
    try:
        save_queued(shift=SHIFT)
    except (Error, RedisError) as error:
        # Continue: reservations can be released even when queued orders cannot be saved, and the repairs below may
        # remove the cause of a Redis error.
        logger.error("Queued orders were not saved. They stay queued. %s: %s", type(error).__name__, error)
    except Exception as error:
        logger.exception("Queued orders were not saved. They stay queued.")
        unexpected = error
    seconds = settings.RECONCILE_GRACE if grace is None else grace
    repairs = inventory.reconcile(sellers, saved, reject, taken, grace=seconds)
    if unexpected is not None:
        raise unexpected
    return repairs


def reconcile_and_audit(*, grace: float | None = None) -> Reconciled:
    """Call `reconcile`, check the conservation law before and after, and log the skus that break it.

    The result is stored for the overview.

    Raises:
        RedisError, django.db.Error, Exception: as `reconcile`. If Postgres is away at the first check, no repair was
            tried.
        DatabaseError: Postgres could not compute the law, for example within a statement timeout. Repairs were made.
    """
    unaudited: DatabaseError | None = None
    before: list[str] = []
    try:
        before = broken()
    except DatabaseError as error:
        # The audit reads all orders, so a large shop may exceed a time limit of Postgres. Repair anyway.
        if is_away(error):
            raise
        unaudited = error
    repairs = reconcile(grace=grace)
    if unaudited is not None:
        raise unaudited
    result = Reconciled(before, repairs, broken())
    reconciliations.note(broken=result.after, repairs=len(repairs), units=result.units)
    if result.before or result.after:
        logger.error(
            "The conservation law is broken. Skus before reconciling: %s. Skus after: %s.", result.before, result.after
        )
    return result


def sellers() -> dict[str, str]:
    """Return the strategy that sells each sku, by sku. Open sales count, and coming sales whose stock is loaded."""
    with connection.cursor() as cursor:
        cursor.execute(SELLERS)
        return dict(cursor.fetchall())
