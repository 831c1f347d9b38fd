"""Figures of the open sales: units sold over time, units left, and orders per second."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from inventory.models import StockItem
from inventory.stock import all_on_hand
from shop import clock
from shop.models import Sale

MOST = 10
"""Maximum number of sales on the overview. The sales that opened last are shown."""
STEPS = 60
"""Number of points of a curve."""
RECENT = 60
"""Number of bars of orders per second, one bar for each of the last seconds."""
RATE = 10
"""Seconds over which the orders per second are averaged."""

# Use `date_part`, because `extract` returns decimals and takes twice as long.
SOLD = """
    SELECT sale_id,
           greatest(0, least(%(steps)s - 1, floor(
               %(steps)s * date_part('epoch', created_at - opens_at)
                         / date_part('epoch', statement_timestamp() - opens_at)
           )))::int AS step,
           sum(quantity - returned)::int
      FROM shop_order
      JOIN shop_sale ON shop_sale.id = sale_id
      JOIN shop_orderitem ON order_id = shop_order.id
     WHERE sale_id = ANY(%(sales)s) AND state IN ('pending', 'paid')
     GROUP BY sale_id, step
"""
# Order ids begin with the time of the order, so the index of the primary key finds the newest orders.
NEWEST = """
    SELECT sale_id, floor(date_part('epoch', statement_timestamp() - created_at))::int AS ago, count(*)
      FROM shop_order
     WHERE id >= %(since)s AND created_at > statement_timestamp() - make_interval(secs => %(recent)s)
       AND state <> 'rejected'
     GROUP BY sale_id, ago
"""


@dataclass(frozen=True, slots=True)
class OpenSaleFigures:
    """An open sale at one moment.

    Args:
        sold: units of pending and paid orders, without returned units.
        curve: units sold up to each of `STEPS` moments between the opening and now.
        recent: orders placed in each of the last `RECENT` seconds, the oldest first.
    """

    sale: Sale
    read_at: datetime
    sold: int
    left: int
    curve: Sequence[int]
    recent: Sequence[int]

    @property
    def rate(self) -> float:
        """Orders per second, averaged over the last `RATE` seconds."""
        return sum(self.recent[-RATE:]) / RATE

    @property
    def curves(self) -> str:
        """The units sold and left at `STEPS` + 1 moments since the opening, and the seconds since then, as JSON."""
        sold, total = [0, *self.curve], self.sold + self.left
        seconds = (self.read_at - self.sale.opens_at).total_seconds()
        return json.dumps({"sold": sold, "left": [max(0, total - units) for units in sold], "seconds": round(seconds)})

    @property
    def bars(self) -> str:
        """The orders placed in each of the last `RECENT` seconds, as JSON."""
        return json.dumps({"orders": list(self.recent)})


def open_sales() -> list[OpenSaleFigures]:
    """Return the figures of the open sales, from one snapshot of the tables. A paused sale is open, too.

    Raises:
        RuntimeError: the call is inside a transaction, whose snapshot may be old.
    """
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        sales = list(_open().prefetch_related("items__product"))
        now = clock.now()
        if not sales:
            return []
        sold, newest = _sold(sales), _newest(now)
        skus = {item.product.sku for sale in sales for item in sale.items.all()}
        left = dict(StockItem.objects.filter(sku__in=skus).values_list("sku", all_on_hand()))
    return [
        OpenSaleFigures(
            sale,
            now,
            sum(sold[sale.pk].values()),
            sum(left.get(item.product.sku, 0) for item in sale.items.all()),
            _running_total(sold[sale.pk]),
            [newest[sale.pk].get(ago, 0) for ago in reversed(range(RECENT))],
        )
        for sale in sales
    ]


def _open() -> QuerySet[Sale]:
    return Sale.objects.filter(opens_at__lt=Now(), closes_at__gt=Now()).order_by("-opens_at", "-pk")[:MOST]


def _sold(sales: Sequence[Sale]) -> Mapping[int, Mapping[int, int]]:
    return _by_sale(SOLD, {"steps": STEPS, "sales": [sale.pk for sale in sales]})


def _newest(now: datetime) -> Mapping[int, Mapping[int, int]]:
    # Begin five seconds earlier, as a margin: the statement compares `created_at` exactly.
    since = UUID(int=int((now.timestamp() - RECENT - 5) * 1000) << 80)
    return _by_sale(NEWEST, {"since": since, "recent": RECENT})


def _by_sale(statement: str, arguments: Mapping[str, Any]) -> Mapping[int, dict[int, int]]:
    found: defaultdict[int, dict[int, int]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments)
        for sale, key, count in cursor.fetchall():
            found[sale][key] = count
    return found


def _running_total(units: Mapping[int, int]) -> list[int]:
    total, curve = 0, []
    for step in range(STEPS):
        total += units.get(step, 0)
        curve.append(total)
    return curve
