"""Check the conservation law, received = on hand + sold, from the tables in Postgres alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connection

from inventory.audit import Figures
from shop.models import Order

# Use one statement, because it sees one snapshot of all tables: an order that is saved meanwhile counts in all figures
# or in none. Use plain SQL, because it is fast: the search of the lab runs it after each of thousands of schedules.
FIGURES = """
    SELECT sku,
           coalesce(moved, 0)::bigint,
           coalesce(on_hand, 0)::bigint,
           coalesce(sold, 0)::bigint,
           (coalesce(received, 0) - coalesce(moved, 0))::bigint
      FROM (SELECT sku,
                   received,
                   on_hand
                       + (SELECT coalesce(sum(on_hand), 0) FROM inventory_stocksegment WHERE sku = item.sku)
                       + (SELECT count(*) FROM inventory_stockunit WHERE sku = item.sku) AS on_hand
              FROM inventory_stockitem AS item
             WHERE %(all)s OR sku = ANY(%(skus)s)) AS stock
      FULL JOIN (SELECT sku, sum(units) AS moved
                   FROM inventory_stockmovement
                  WHERE %(all)s OR sku = ANY(%(skus)s)
                  GROUP BY sku) AS movements USING (sku)
      FULL JOIN (SELECT sku, sum(quantity - returned) AS sold
                   FROM shop_orderitem JOIN shop_order ON shop_order.id = order_id
                  WHERE state = ANY(%(standing)s) AND (%(all)s OR sku = ANY(%(skus)s))
                  GROUP BY sku) AS orders USING (sku)
     ORDER BY sku COLLATE "C"
"""


def figures(skus: Iterable[str] | None = None) -> list[Figures]:
    """Return the units received, on hand and sold of some skus or of all, from one snapshot of the tables.

    It is safe to call this while the shop is selling.
    """
    values: dict[str, Any] = {"all": skus is None, "skus": list(skus or ()), "standing": list(Order.STANDING)}
    with connection.cursor() as cursor:
        cursor.execute(FIGURES, values)
        return [Figures(*row) for row in cursor.fetchall()]


def broken() -> list[str]:
    """Return the skus for which the conservation law is broken."""
    return [row.sku for row in figures() if not row.conserved]
