"""The ledger of the lab's ways of selling: save orders in the lab's own tables, and check the conservation law there.

The law: units received = units on hand + units sold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Count, F, Q, Sum

from inventory import audit
from inventory.errors import Refusal
from inventory.requests import OrderRequest
from lab.ladder.stock import RUNGS
from lab.models import RungOrder, RungStock


def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
    """Save the orders in one statement, as the `Save` function of a strategy.

    It saves every order, also one with a repeated idempotency key, so the result is empty. `duplicate-click` shows why
    keys must be unique.
    """
    RungOrder.objects.bulk_create(
        RungOrder(order=request.id, customer=request.customer, key=request.key, sku=item.sku, quantity=item.quantity)
        for request in requests
        for item in request.items
    )
    return {}


def stock_up(sku: str, received: int) -> None:
    """Reset a sku to this number of received units and no orders, also in the copies in Redis."""
    with transaction.atomic():
        RungOrder.objects.filter(sku=sku).delete()
        RungStock.objects.update_or_create(sku=sku, defaults={"received": received, "on_hand": received})
    for rung in RUNGS.values():
        rung.preheat([sku], lambda requests: set())


def cancel(order: UUID) -> bool:
    """Cancel an order and put its units back on hand. A second call changes nothing.

    Returns:
        Whether this call has cancelled the order.
    """
    placed = RungOrder.objects.filter(order=order, state=RungOrder.State.PLACED)
    with transaction.atomic(durable=True):
        cancelled = list(placed.select_for_update().order_by("sku"))
        for item in cancelled:
            if not item.counted:
                RungStock.objects.filter(sku=item.sku).update(on_hand=F("on_hand") + item.quantity)
        placed.update(state=RungOrder.State.CANCELLED)
    return bool(cancelled)


def figures(sku: str) -> audit.Figures:
    """Return the conservation-law figures of a sku, from one snapshot of the lab's tables.

    Raises:
        RungStock.DoesNotExist: the lab has no stock of this sku.
    """
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        stock = RungStock.objects.get(sku=sku)
        units = RungOrder.objects.filter(sku=sku, state=RungOrder.State.PLACED).aggregate(
            sold=Sum("quantity", default=0), counted=Sum("quantity", filter=Q(counted=True), default=0)
        )
    return audit.check([(stock.sku, stock.received, stock.on_hand - units["counted"])], {sku: units["sold"]})[0]


def unowned(sku: str) -> int:
    """Return the number of units on hand that cannot be bought: a copy in Redis neither offers nor reserves them.

    Each way of selling that takes units from Redis has its own copy of the stock there. The result is the largest
    difference between the units on hand and a copy. If a way of selling has sold nothing, its copy is at least as large
    as the units on hand, so it does not change the result.
    """
    on_hand = figures(sku).on_hand
    copies = (rung.copy(sku) for rung in RUNGS.values())
    return max(0, *(on_hand - copy for copy in copies if copy is not None))


def repeated(sku: str) -> int:
    """Return how many placed orders of a sku have the customer and idempotency key of an earlier order."""
    keys = RungOrder.objects.filter(sku=sku, state=RungOrder.State.PLACED).values("customer", "key")
    return sum(orders - 1 for orders in keys.annotate(orders=Count("pk")).values_list("orders", flat=True))
