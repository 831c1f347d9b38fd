"""What the rungs have sold: the lab's own Save, and the conservation law over the lab's own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Sum

from inventory import audit
from inventory.draft import Draft
from inventory.errors import Refusal
from lab.models import RungOrder, RungStock


def save(drafts: Sequence[Draft]) -> Mapping[UUID, Refusal]:
    """Write what was sold, in one statement. It refuses nothing: keys and limits are not what these rungs teach."""
    RungOrder.objects.bulk_create(
        RungOrder(order=draft.id, sku=line.sku, quantity=line.quantity) for draft in drafts for line in draft.lines
    )
    return {}


def stock_up(sku: str, received: int) -> None:
    """Start a sku over with so many units and no order."""
    with transaction.atomic():
        RungOrder.objects.filter(sku=sku).delete()
        RungStock.objects.update_or_create(sku=sku, defaults={"received": received, "on_hand": received})


def figures(sku: str) -> audit.Figures:
    """The conservation law for a sku, from one snapshot of the lab's tables.

    Raises:
        RungStock.DoesNotExist: the sku was never stocked.
    """
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        stock = RungStock.objects.get(sku=sku)
        sold = RungOrder.objects.filter(sku=sku).aggregate(units=Sum("quantity"))["units"] or 0
    return audit.check([(stock.sku, stock.received, stock.on_hand)], {sku: sold})[0]
