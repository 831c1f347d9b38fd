"""What the rungs have sold: the lab's own Save, and the conservation law over the lab's own tables."""

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
    """Write what was sold, in one statement. It refuses nothing: what a key is for is the last rung's lesson."""
    RungOrder.objects.bulk_create(
        RungOrder(order=request.id, customer=request.customer, key=request.key, sku=item.sku, quantity=item.quantity)
        for request in requests
        for item in request.items
    )
    return {}


def stock_up(sku: str, received: int) -> None:
    """Start a sku over with so many units and no order, and every rung's copy in Redis with it."""
    with transaction.atomic():
        RungOrder.objects.filter(sku=sku).delete()
        RungStock.objects.update_or_create(sku=sku, defaults={"received": received, "on_hand": received})
    for rung in RUNGS.values():
        rung.preheat([sku], lambda requests: set())


def cancel(order: UUID) -> bool:
    """End an order and put its units back on hand, once.

    Returns:
        Whether it stood until now.
    """
    placed = RungOrder.objects.filter(order=order, state=RungOrder.State.PLACED)
    with transaction.atomic(durable=True):
        ended = list(placed.select_for_update().order_by("sku"))
        for item in ended:
            if not item.counted:
                RungStock.objects.filter(sku=item.sku).update(on_hand=F("on_hand") + item.quantity)
        placed.update(state=RungOrder.State.CANCELLED)
    return bool(ended)


def figures(sku: str) -> audit.Figures:
    """The conservation law for a sku, from one snapshot of the lab's tables.

    Raises:
        RungStock.DoesNotExist: the sku was never stocked.
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
    """Units on hand that the copy in Redis neither offers nor keeps for anybody: nobody can buy them.

    Every rung has a copy of its own. Those that have sold nothing show too much, and so no such unit.
    """
    on_hand = figures(sku).on_hand
    copies = (rung.copy(sku) for rung in RUNGS.values())
    return max(0, *(on_hand - copy for copy in copies if copy is not None))


def repeated(sku: str) -> int:
    """Orders of a sku that stand although another of the same customer and key does."""
    keys = RungOrder.objects.filter(sku=sku, state=RungOrder.State.PLACED).values("customer", "key")
    return sum(orders - 1 for orders in keys.annotate(orders=Count("pk")).values_list("orders", flat=True))
