"""Measure how fast a worker saves queued orders, compared with COPY, the fastest way to write rows to Postgres."""

from __future__ import annotations

import time
from collections.abc import Sequence
from decimal import Decimal
from statistics import median
from uuid import UUID

import uuid_utils.compat
from django.db import connection

from inventory.requests import OrderRequest
from inventory.strategies import registry
from loadtest import outcome, preparation
from loadtest.burst import Burst
from shop.orders.place import make_request
from shop.orders.queued import save_queued
from shop.sales import offers

ORDERS = 2000
TABLES = ("shop_order", "shop_orderitem")


def measure(*, customers: Sequence[int], rounds: int) -> dict[str, float]:
    """Return orders per second saved by one worker, and by COPY: medians of interleaved rounds.

    Raises:
        RuntimeError: orders were lost, so the run has no valid throughput.
    """
    saved, copied = [], []
    for _ in range(1 + rounds):
        burst = preparation.prepare(strategy="lua-queue", units=ORDERS, limit=ORDERS, customers=[*customers])
        requests = [order_request(burst, customers[number % len(customers)]) for number in range(ORDERS)]
        queue = registry.queue()
        for each in requests:
            queue.enqueue(each)
        started = time.monotonic()
        save_queued()
        saved.append(ORDERS / (time.monotonic() - started))
        (figures,) = outcome.stock_figures(burst)
        if not figures.conserved or figures.sold != ORDERS:
            raise RuntimeError(f"{ORDERS} orders were queued, but the tables hold {figures}.")
        copied.append(ORDERS / copy([each.id for each in requests]))
        outcome.close_sale(burst)
    # Leave out the first round, which fills the caches.
    return {"queue_saved_per_s": round(median(saved[1:]), 1), "copy_per_s": round(median(copied[1:]), 1)}


def order_request(burst: Burst, customer: int) -> OrderRequest:
    offer = offers.read(burst.sale)
    if offer is None:
        raise RuntimeError("The benchmark's sale was deleted while it ran.")
    return make_request(
        offer,
        customer=customer,
        quantities=dict.fromkeys(burst.products.values(), 1),
        key=str(uuid_utils.compat.uuid7()),
        expected_prices=dict.fromkeys(burst.products.values(), Decimal(burst.price)),
    )


def copy(orders: Sequence[UUID]) -> float:
    """Return the seconds that COPY takes to write and commit the rows of orders, in tables with the same indexes."""
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"CREATE TABLE bench_{table} (LIKE {table} INCLUDING ALL)")
        try:
            rows = {
                table: fetch(f"SELECT * FROM {table} WHERE {key} = ANY(%s)", [list(orders)])
                for table, key in zip(TABLES, ("id", "order_id"), strict=True)
            }
            started = time.monotonic()
            for table, table_rows in rows.items():
                with cursor.copy(f"COPY bench_{table} FROM STDIN") as copying:
                    for row in table_rows:
                        copying.write_row(row)
            return time.monotonic() - started
        finally:
            for table in TABLES:
                cursor.execute(f"DROP TABLE bench_{table}")


def fetch(statement: str, values: list[list[UUID]]) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())
