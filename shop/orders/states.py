"""Change the state of an order: lock its row, check its state, and write the new state with a guarded update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from shop.models import Ending, Order


class StateConflict(Exception):
    """Another transaction has changed the order since it was read. The caller rolls back, and may try again."""


def locked(order: UUID, **filters: Any) -> Order:
    """Lock an order until the end of the open transaction, and return it with its items.

    Callers may lock the order before the stock rows, but have to write its new state after the stock. Otherwise there
    may be a deadlock: the transaction of a new order locks the stock row, and then waits for any transaction that has
    written an order with the same key. It does not wait for a transaction that has only locked that order.

    Args:
        filters: further conditions on the order.

    Raises:
        Order.DoesNotExist: there is no such order.
    """
    orders = Order.objects.select_for_update(no_key=True).prefetch_related("items__product")
    return orders.get(pk=order, **filters)


def change(order: Order, state: Order.State) -> None:
    """Write the new state of an order in the open transaction, if its state has not changed since it was read.

    Raises:
        StateConflict: the state has changed, because the order was read without a lock. The caller rolls back.
    """
    if not Order.objects.filter(pk=order.pk, state=order.state).update(state=state):
        raise StateConflict(f"Order {order.pk} is not {order.state} any more.")
    order.state = state


def record_endings(orders: Sequence[UUID], state: Order.State, *, by: int | None) -> None:
    """Record when and by whom orders were ended, in the transaction that has written their new state.

    This takes one statement for any number of orders.

    Args:
        by: user id of the customer or operator; None for a program of the shop.
    """
    Ending.objects.bulk_create([Ending(order_id=order, state=state, by_id=by) for order in orders])
