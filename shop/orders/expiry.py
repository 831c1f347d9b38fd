"""Expire orders that were not paid in time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Q
from django.db.models.functions import Now

from inventory.outages import is_away, outages
from shop.models import Order
from shop.orders.ending import end_pending


def expire_unpaid(*, batch: int = 100) -> int:
    """Expire pending orders whose time to pay is over, and give their units and allowances back exactly once.

    Args:
        batch: maximum number of orders in one transaction. Orders that another transaction has locked are skipped.

    Returns:
        The number of orders that expired.

    Raises:
        django.db.Error: Postgres does not answer.
    """
    due = Now() - timedelta(seconds=settings.ORDER_TTL)
    # Sort in the order of the index of pending orders. If the query sorted by id, Postgres might search the index of
    # ids, which begins with all old orders. Postgres does not know that the pending orders are the newest.
    unpaid = Order.objects.filter(state=Order.State.PENDING, payable_from__lte=due).order_by("payable_from", "pk")
    total, rest = 0, unpaid
    while found := list(rest.values_list("payable_from", "pk")[:batch]):
        at, last = found[-1]
        rest = unpaid.filter(Q(payable_from__gt=at) | Q(pk__gt=last), payable_from__gte=at)
        ids = [order for _, order in found]
        try:
            total += _expire(ids)
        except DatabaseError as error:
            if is_away(error):
                raise
            # Expire each order in a transaction of its own. So an order whose units cannot be returned does not stop
            # the other orders.
            total += sum(_expire_if_possible(order) for order in ids)
    return total


def _expire(ids: Sequence[UUID]) -> int:
    return len(end_pending(ids, Order.State.EXPIRED))


def _expire_if_possible(order: UUID) -> int:
    try:
        return _expire([order])
    except DatabaseError as error:
        if is_away(error):
            raise
        outages.failed(f"Expiring order {order}, whose units stay sold,", error)
        return 0
