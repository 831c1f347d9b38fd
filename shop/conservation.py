"""Check the conservation law, received = on hand + sold, from the tables in Postgres alone."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection, transaction
from django.db.models import F, Sum

from inventory import audit
from inventory.models import StockItem, StockMovement
from inventory.stock import all_on_hand
from shop.models import Order, OrderItem


def figures(skus: Iterable[str] | None = None) -> list[audit.Figures]:
    """Return the units received, on hand and sold of some skus or of all, from one snapshot of the tables.

    It is safe to call this while the shop is selling.

    Raises:
        RuntimeError: the call is inside a transaction, whose snapshot may be old.
    """
    stock = StockItem.objects.all()
    items = OrderItem.objects.filter(order__state__in=Order.STANDING)
    movements = StockMovement.objects.order_by()
    if skus is not None:
        skus = list(skus)
        stock = stock.filter(sku__in=skus)
        items = items.filter(product__sku__in=skus)
        movements = movements.filter(item__in=skus)
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return audit.check(
            stock.values_list("sku", "received", all_on_hand()),
            dict(items.values_list("product").annotate(units=Sum(F("quantity") - F("returned")))),
            dict(movements.values_list("item").annotate(Sum("units"))),
        )


def broken() -> list[str]:
    """Return the skus for which the conservation law is broken."""
    return [row.sku for row in figures() if not row.conserved]
