"""Export the orders of a filtered list as CSV, streamed in batches.

A slow client does not cost more memory, because the next batch is read only after the client has read the previous
batch.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib.postgres.aggregates import StringAgg
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum, TextField, Value
from django.db.models.functions import Cast, Concat

from shop.admin.read_only import to_the_second
from shop.models import Order, OrderItem, Payment

logger = logging.getLogger(__name__)

BATCH = 1000
"""Number of orders that one statement reads."""
HEADER = (
    *("id", "customer", "sale", "state", "placed", "ended", "ended_by", "products", "total", "currency", "references"),
    *("key", "reason"),
)
INCOMPLETE = "INCOMPLETE: older orders are missing, because of an error. Export again."
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet evaluate a cell as a formula. A customer may have chosen a cell's text."""


ITEMS = OrderItem.objects.filter(order=OuterRef("pk")).order_by().values("order")
ITEM = Concat(Cast("quantity", TextField()), Value(" × "), "name")
PRODUCTS = Subquery(ITEMS.annotate(text=StringAgg(ITEM, "; ", order_by="product")).values("text"))
TOTAL = Subquery(ITEMS.annotate(total=Sum(F("price") * F("quantity"))).values("total"))
OF_ORDER = Payment.objects.filter(order=OuterRef("pk")).order_by().values("order")
REFERENCES = Subquery(OF_ORDER.annotate(text=StringAgg("reference", "; ", order_by="pk")).values("text"))


class Echo:
    """A file for `csv.writer` whose `write` returns the text instead of storing it."""

    def write(self, text: str) -> str:
        return text


def rows(orders: QuerySet[Order], *, references: bool = True) -> Iterator[str]:
    """Yield the CSV lines batch by batch, newest order first.

    Each batch is read by a statement of its own, which continues after the last id of the previous batch. A single
    server-side cursor for all orders would exceed the statement timeout, and a pooler allows no cursor. Orders that are
    placed during the export are not in the export.

    Args:
        references: whether the reader may see payments. If not, the column with the references of payments is left out.
    """
    writer = csv.writer(Echo())
    yield writer.writerow([name for name in HEADER if references or name != "references"])
    found = orders.order_by("-pk").values_list(
        *("pk", "customer__username", "sale__name", "state", "created_at", "ending__at", "ending__by__username"),
        *(PRODUCTS, TOTAL, "currency", *((REFERENCES,) if references else ()), "key", "reason"),
    )
    # The response has already begun with status 200. So if an error occurs, add a last row that says so.
    try:
        batch = list(found[:BATCH])
        while batch:
            yield "".join(writer.writerow(cells(row)) for row in batch)
            batch = list(found.filter(pk__lt=batch[-1][0])[:BATCH])
    except Exception:
        logger.exception("An export of orders has ended early.")
        yield writer.writerow([INCOMPLETE])


def cells(row: Sequence[Any]) -> list[str]:
    pk, customer, sale, state, placed, ended, by, products, total, *others = row
    times = (to_the_second(placed), to_the_second(ended) if ended else None)
    texts = (pk, customer, sale, state, *times, by, products, f"{total or 0:.2f}", *others)
    return [safe("" if text is None else str(text)) for text in texts]


def safe(text: str) -> str:
    """Return the text with a leading quote if a spreadsheet would evaluate it as a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
