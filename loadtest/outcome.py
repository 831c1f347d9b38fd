"""Read the outcome of a burst from the tables."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from uuid import UUID

from django.apps import apps
from redis import RedisError

from inventory.audit import Figures
from inventory.strategies import registry
from loadtest.burst import Burst
from loadtest.lab_api import call_lab
from shop import conservation
from shop.models import Order, OrderItem, Sale
from shop.sales import lifecycle

logger = logging.getLogger(__name__)

QUEUE_SECONDS = 60.0
"""Longest wait for an empty queue, in seconds."""
IDS = 10_000
"""Number of orders that one statement looks up. A statement has at most 65,535 parameters."""


def close_sale(burst: Burst) -> None:
    """Close the burst's sale. Delete the sale of a rung, because it has no orders in the shop's tables.

    If Redis does not answer, the sale's counters stay in Redis and a warning is logged.
    """
    if burst.rung:
        Sale.objects.filter(pk=burst.sale).delete()
        return
    try:
        lifecycle.close(burst.sale)
    except RedisError as error:
        logger.warning("The counters of the burst stay in Redis: %s", error)


def wait_for_queue(burst: Burst) -> int:
    """Wait until the queue of orders is empty, for at most `QUEUE_SECONDS` seconds.

    Returns:
        The number of orders that are still queued.
    """
    if burst.rung or not registry.get(burst.strategy).queues:
        return 0
    deadline = time.monotonic() + QUEUE_SECONDS
    while (queued := len(registry.queue())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return queued


def stock_figures(burst: Burst, *, host: str = "") -> list[Figures]:
    """Return received, on-hand and sold units of each sku. For a rung, they are read from the lab's tables."""
    if burst.rung:
        rows = [call_lab(host, "GET", f"/lab/stock/{sku}/", burst.customers[0]) for sku in burst.products]
        return [Figures(row["sku"], row["received"], row["on_hand"], row["sold"]) for row in rows]
    return conservation.figures(burst.products)


def count_missing(burst: Burst, orders: list[str]) -> int:
    """Return how many of these orders, confirmed with 201 or 202, are missing in the tables; for a rung, in the lab's.

    Args:
        orders: ids of the orders.
    """
    # This package may not import the lab, so ask Django for the model. An order of a rung has a row for each item.
    model, field = (apps.get_model("lab", "RungOrder"), "order") if burst.rung else (Order, "id")
    batches = (orders[first : first + IDS] for first in range(0, len(orders), IDS))
    found = (model.objects.filter(**{f"{field}__in": batch}).values(field).distinct() for batch in batches)
    return len(orders) - sum(rows.count() for rows in found)


def rejected_carts(burst: Burst) -> list[dict[str, int]]:
    """Return the carts, as units by sku, of orders that were queued and then rejected."""
    if burst.rung:
        return []
    items = OrderItem.objects.filter(order__sale=burst.sale, order__state=Order.State.REJECTED)
    carts: defaultdict[UUID, dict[str, int]] = defaultdict(dict)
    for order, sku, units in items.values_list("order", "product__sku", "quantity"):
        carts[order][sku] = units
    return list(carts.values())
