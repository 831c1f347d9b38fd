"""The orders of a filtered list as CSV, streamed in batches.

The web server buffers what a slow client has not read yet: about 13 MB for 100,000 orders.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib.postgres.aggregates import StringAgg
from django.db import DatabaseError
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum, TextField, Value
from django.db.models.functions import Cast, Concat

from shop.admin.read_only import to_the_second
from shop.models import Order, OrderItem, Payment

logger = logging.getLogger(__name__)

BATCH = 1000
"""Orders that are read by one statement."""
HEADER = (
    *("id", "customer", "sale", "state", "placed", "ended", "ended_by", "products", "total", "currency", "references"),
    *("key", "reason"),
)
INCOMPLETE = "INCOMPLETE: older orders are missing, because Postgres did not answer. Export again."
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet calculates. A customer may have chosen the text."""


ITEMS = OrderItem.objects.filter(order=OuterRef("pk")).order_by().values("order")
ITEM = Concat(Cast("quantity", TextField()), Value(" × "), "name")
PRODUCTS = Subquery(ITEMS.annotate(text=StringAgg(ITEM, "; ", order_by="product")).values("text"))
TOTAL = Subquery(ITEMS.annotate(total=Sum(F("price") * F("quantity"))).values("total"))
OF_ORDER = Payment.objects.filter(order=OuterRef("pk")).order_by().values("order")
REFERENCES = Subquery(OF_ORDER.annotate(text=StringAgg("reference", "; ", order_by="pk")).values("text"))


class Echo:
    """A file that returns what is written to it."""

    def write(self, text: str) -> str:
        return text


def rows(orders: QuerySet[Order]) -> Iterator[str]:
    """Yield the lines of each batch, the newest order first.

    Each batch is a statement of its own that continues after the last id. A cursor in Postgres would run one statement
    for all orders, which a web server may not for long, and a pooler allows none. An order that was placed since the
    export has begun is left out, as its id comes first.
    """
    writer = csv.writer(Echo())
    yield writer.writerow(HEADER)
    found = orders.order_by("-pk").values_list(
        *("pk", "customer__username", "sale__name", "state", "created_at", "ending__at", "ending__by__username"),
        *(PRODUCTS, TOTAL, "currency", REFERENCES, "key", "reason"),
    )
    # The answer has begun, so an error cannot become its status any more.
    try:
        batch = list(found[:BATCH])
        while batch:
            yield "".join(writer.writerow(cells(row)) for row in batch)
            batch = list(found.filter(pk__lt=batch[-1][0])[:BATCH])
    except DatabaseError:
        logger.exception("An export of orders has ended early.")
        yield writer.writerow([INCOMPLETE])


def cells(row: Sequence[Any]) -> list[str]:
    pk, customer, sale, state, placed, ended, by, products, total, *others = row
    times = (to_the_second(placed), to_the_second(ended) if ended else None)
    texts = (pk, customer, sale, state, *times, by, products, f"{total or 0:.2f}", *others)
    return [safe("" if text is None else str(text)) for text in texts]


def safe(text: str) -> str:
    """Return a cell that a spreadsheet shows as text, and does not calculate."""
    return f"'{text}" if text.startswith(FORMULA) else text
