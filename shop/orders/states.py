"""How the state of an order changes: its row is locked, looked at, and written by one guarded update."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from shop.models import Order


class Overtaken(Exception):
    """Somebody has changed the order since it was read. Nothing was changed now; ask again."""


def locked(order: UUID, **whose: Any) -> Order:
    """The order with its items, in the open transaction: nobody changes its state before that ends.

    The lock may come before those of the stock rows, the new state may not: an order that is placed holds the stock and
    waits for whoever has written the order of its key. A lock alone it does not wait for.

    Args:
        whose: what else must be true of it.

    Raises:
        Order.DoesNotExist: there is none.
    """
    orders = Order.objects.select_for_update(no_key=True).prefetch_related("items__product")
    return orders.get(pk=order, **whose)


def change(order: Order, state: Order.State) -> None:
    """Write the new state in the open transaction, if the order still has the one that was read.

    Raises:
        Overtaken: it has not, so it was read without its lock. The caller's transaction rolls back.
    """
    if not Order.objects.filter(pk=order.pk, state=order.state).update(state=state):
        raise Overtaken(f"Order {order.pk} is not {order.state} any more.")
    order.state = state
