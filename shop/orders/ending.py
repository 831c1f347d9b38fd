"""End many pending orders at once, because their time to pay is over or an operator cancels them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction

from shop.models import Order
from shop.orders import states
from shop.orders.saving import return_units


def end_pending(orders: Sequence[UUID], state: Order.State, *, by: int | None = None) -> list[UUID]:
    """End those orders that are pending, and give their units and allowances back, in one transaction.

    Orders that another transaction has locked are skipped, because that transaction is changing them.

    Args:
        state: the new state.
        by: user id of the operator who ends the orders; None for a program of the shop.

    Returns:
        The ids of the ended orders.
    """
    with transaction.atomic(durable=True):
        pending = Order.objects.select_for_update(skip_locked=True).filter(pk__in=orders, state=Order.State.PENDING)
        mine = list(pending.order_by("pk").values_list("pk", flat=True))
        # Write the stock before the state, to avoid a deadlock. The transaction of a new order locks the stock row
        # first. Then it waits for a transaction that has written an order with the same key, perhaps for this one.
        return_units(mine)
        Order.objects.filter(pk__in=mine, state=Order.State.PENDING).update(state=state)
        states.record_endings(mine, state, by=by)
    return mine
