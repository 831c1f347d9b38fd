"""Reference figures for orders over HTTP: one client with `redis-lock`, and pgbench on one hot row."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from django.conf import settings
from django.db import connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from inventory.strategies.locks import conninfo
from loadtest import outcome, preparation
from loadtest.bench.buying import buy_one
from servers.postgres import WHEEL

STOCK = 1_000_000
MAX_CLIENTS = 100
"""Maximum number of clients on the hot row, because each client has a connection to Postgres."""
HOT_ROW = Path(__file__).with_name("hot_row.sql")
TABLES = "bench_stock, bench_order, bench_item"
CREATE = f"""
    DROP TABLE IF EXISTS {TABLES};
    CREATE TABLE bench_stock (sku text PRIMARY KEY, on_hand bigint NOT NULL CHECK (on_hand >= 0));
    CREATE TABLE bench_order (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL);
    CREATE TABLE bench_item ("order" bigint PRIMARY KEY, sku text NOT NULL, quantity int NOT NULL);
    INSERT INTO bench_stock VALUES ('hot', {STOCK});
"""


def measure(*, customers: Sequence[int], clients: int, seconds: float) -> dict[str, float]:
    """Measure both reference figures once, and return them per second.

    Args:
        customers: user ids that order from the shop.
        clients: clients on the hot row; `MAX_CLIENTS` if there are more.
        seconds: duration of each measurement; for pgbench, it is rounded to whole seconds.

    Raises:
        RuntimeError: units or orders were lost, so the run has no valid throughput, or pgbench failed.
    """
    return {
        "redis_lock_alone_per_s": redis_lock_alone(customers, seconds),
        "pgbench_hot_row_per_s": hot_row(clients, max(1, round(seconds))),
    }


def summarize_rounds(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the medians over the rounds."""
    return {name: round(median(row[name] for row in rounds), 1) for name in rounds[0]}


def redis_lock_alone(customers: Sequence[int], seconds: float) -> float:
    """Return the orders per second of one client, in this process and without contention."""
    burst = preparation.prepare(strategy="redis-lock", units=STOCK, limit=STOCK, customers=[*customers])
    (product,) = burst.products.values()
    placed, took, started = 0, 0.0, time.monotonic()
    while took < seconds:
        customer = customers[placed % len(customers)]
        buy_one(sale=burst.sale, product=product, customer=customer)
        placed, took = placed + 1, time.monotonic() - started
    (figures,) = outcome.stock_figures(burst)
    outcome.close_sale(burst)
    if not figures.conserved or figures.sold != placed:
        raise RuntimeError(f"{placed} orders were placed, but the tables hold {figures}.")
    return placed / took


def hot_row(clients: int, seconds: int) -> float:
    """Return pgbench's transactions per second.

    A transaction decrements the stock, and inserts an order and its item.
    """
    settings.RUN_FOLDER.create()
    WHEEL.unpack(settings.RUN_FOLDER.path)
    pgbench = WHEEL.path(settings.RUN_FOLDER.path).with_name("pgbench")
    clients = min(clients, MAX_CLIENTS)
    options = ("--no-vacuum", "--protocol=prepared", f"--client={clients}", "--jobs=2", f"--time={seconds}")
    address, environment = _server()
    with connection.cursor() as cursor:
        cursor.execute(CREATE)
        try:
            done = subprocess.run(
                [pgbench, *options, f"--file={HOT_ROW}", address],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            cursor.execute("SELECT on_hand + (SELECT count(*) FROM bench_item) FROM bench_stock")
            (units,) = cursor.fetchone()
        finally:
            cursor.execute(f"DROP TABLE {TABLES}")
    tps = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
    if done.returncode or tps is None:
        raise RuntimeError(f"pgbench failed: {done.stderr or done.stdout}")
    if units != STOCK:
        raise RuntimeError(f"The hot row had {STOCK} units, but {units} are left or sold.")
    return float(tps[1])


def _server() -> tuple[str, dict[str, str]]:
    """Return address and environment for pgbench. The password is in the environment, because `ps` shows addresses."""
    address = conninfo_to_dict(conninfo())
    others = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    password = {"PGPASSWORD": str(address.pop("password"))} if "password" in address else {}
    return make_conninfo("", **address), {**others, **password, "LC_ALL": "C"}
