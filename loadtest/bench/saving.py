"""What a worker saves of the queue in a second, beside COPY of the same rows: the least that Postgres asks for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from uuid import UUID

import uuid_utils.compat
from django.db import connection

from inventory.requests import OrderRequest
from inventory.strategies import registry
from loadtest import burst as bursts
from shop.orders.place import make_request
from shop.orders.queued import save_queued
from shop.sales import offers

ORDERS = 2000
TABLES = ("shop_order", "shop_orderitem")


def measure(*, customers: Sequence[int], rounds: int) -> dict[str, float]:
    """Orders saved per second by one worker, and by COPY. Medians over the rounds, interleaved.

    Raises:
        RuntimeError: the law was broken, and such a run has no throughput.
    """
    saved, copied = [], []
    for _ in range(rounds):
        burst = bursts.prepare(
            host="",
            strategy="lua-queue",
            rung="",
            units=ORDERS,
            skus=1,
            quantity=1,
            limit=ORDERS,
            customers=[*customers],
        )
        requests = [request(burst, customers[number % len(customers)]) for number in range(ORDERS)]
        queue = registry.queue()
        for each in requests:
            queue.put(each)
        begun = time.monotonic()
        save_queued()
        saved.append(ORDERS / (time.monotonic() - begun))
        (figures,) = bursts.figures(burst, host="")
        if not figures.conserved or figures.sold != ORDERS:
            raise RuntimeError(f"{ORDERS} were queued, but the tables say {figures}.")
        copied.append(ORDERS / copy([each.id for each in requests]))
        bursts.finish(burst)
    return {"queue_saved_per_s": round(median(saved), 1), "copy_per_s": round(median(copied), 1)}


def request(burst: bursts.Burst, customer: int) -> OrderRequest:
    offer = offers.read(burst.sale)
    if offer is None:
        raise RuntimeError("The sale of the benchmark is gone.")
    quantities = dict.fromkeys(burst.products.values(), 1)
    return make_request(offer, customer=customer, quantities=quantities, key=str(uuid_utils.compat.uuid7()))


def copy(orders: Sequence[UUID]) -> float:
    """Seconds that COPY takes for the rows of orders, into tables with the same indexes, committed."""
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"CREATE TABLE bench_{table} (LIKE {table} INCLUDING ALL)")
        try:
            rows = {
                table: fetched(f"SELECT * FROM {table} WHERE {key} = ANY(%s)", [list(orders)])
                for table, key in zip(TABLES, ("id", "order_id"), strict=True)
            }
            begun = time.monotonic()
            for table, found in rows.items():
                with cursor.copy(f"COPY bench_{table} FROM STDIN") as written:
                    for row in found:
                        written.write_row(row)
            return time.monotonic() - begun
        finally:
            for table in TABLES:
                cursor.execute(f"DROP TABLE bench_{table}")


def fetched(statement: str, values: list[list[UUID]]) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())
