"""Change the state of an order: lock its row, check its state, and write the new one with a guarded update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from shop.models import Ending, Order


class StateConflict(Exception):
    """Another transaction has changed the order since it was read. Nothing was changed; try again."""


def locked(order: UUID, **filters: Any) -> Order:
    """Return an order with its items, locked: its state cannot change before the open transaction ends.

    Lock the order before the stock rows if you like, but write its new state after them. An order that is being placed
    holds the stock row and waits for a transaction that has written the order with the same key. It does not wait for a
    transaction that has only locked that order.

    Args:
        filters: further conditions on the order.

    Raises:
        Order.DoesNotExist: there is no such order.
    """
    orders = Order.objects.select_for_update(no_key=True).prefetch_related("items__product")
    return orders.get(pk=order, **filters)


def change(order: Order, state: Order.State) -> None:
    """Write the new state of an order in the open transaction, if its state is still the one that was read.

    Raises:
        StateConflict: the state has changed, because the order was read without a lock. The caller rolls back.
    """
    if not Order.objects.filter(pk=order.pk, state=order.state).update(state=state):
        raise StateConflict(f"Order {order.pk} is not {order.state} any more.")
    order.state = state


def record_endings(orders: Sequence[UUID], state: Order.State, *, by: int | None) -> None:
    """Write when and by whom orders were ended, in the transaction that has written their new state.

    This takes one statement for any number of orders.

    Args:
        by: id of the customer or operator; None for a program of the shop.
    """
    Ending.objects.bulk_create([Ending(order_id=order, state=state, by_id=by) for order in orders])
