"""What orders through the web are held against: one client alone at the lock, and pgbench at one hot row."""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from django.conf import settings
from django.db import connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from inventory.strategies.locks import conninfo
from loadtest import burst as bursts
from servers.postgres import WHEEL
from shop.orders.place import place_order

STOCK = 1_000_000
CLIENTS = 100
"""Of the hot row, at most: each has a connection to Postgres."""
HOT_ROW = Path(__file__).with_name("hot_row.sql")
TABLES = "bench_stock, bench_order, bench_line"
MADE = f"""
    DROP TABLE IF EXISTS {TABLES};
    CREATE TABLE bench_stock (sku text PRIMARY KEY, on_hand bigint NOT NULL CHECK (on_hand >= 0));
    CREATE TABLE bench_order (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL);
    CREATE TABLE bench_line ("order" bigint PRIMARY KEY, sku text NOT NULL, quantity int NOT NULL);
    INSERT INTO bench_stock VALUES ('hot', {STOCK});
"""


def measure(*, customers: Sequence[int], clients: int, rounds: int, seconds: float) -> dict[str, float]:
    """Orders per second, medians of rounds in turn, after one that warms up.

    Args:
        customers: ids of users; those who buy from the shop.
        clients: of the hot row, `CLIENTS` at most.
        seconds: of each measurement; pgbench knows whole ones only.

    Raises:
        RuntimeError: the law was broken, and such a run has no throughput; or pgbench did not do its work.
    """
    alone, hot = [], []
    for turn in range(rounds + 1):
        figures = redis_lock_alone(customers, seconds), hot_row(clients, max(1, round(seconds)))
        if turn:
            alone.append(figures[0])
            hot.append(figures[1])
    return {"redis_lock_alone_per_s": round(median(alone), 1), "pgbench_hot_row_per_s": round(median(hot), 1)}


def redis_lock_alone(customers: Sequence[int], seconds: float) -> float:
    """One client that orders again as soon as he was answered: nobody is in his way, and there is no web server."""
    burst = bursts.prepare(
        host="",
        strategy="redis-lock",
        rung="",
        units=STOCK,
        skus=1,
        quantity=1,
        limit=STOCK,
        customers=[*customers],
    )
    (product,) = burst.products.values()
    placed, took, begun = 0, 0.0, time.monotonic()
    while took < seconds:
        customer = customers[placed % len(customers)]
        place_order(customer=customer, sale=burst.sale, quantities={product: 1}, key=uuid.uuid4().hex)
        placed, took = placed + 1, time.monotonic() - begun
    (figures,) = bursts.figures(burst, host="")
    bursts.finish(burst)
    if not figures.conserved or figures.sold != placed:
        raise RuntimeError(f"{placed} were placed, but the tables say {figures}.")
    return placed / took


def hot_row(clients: int, seconds: int) -> float:
    """Transactions per second of pgbench: one unit less, an order and its line, each in a statement of its own."""
    settings.RUN_FOLDER.create()
    WHEEL.unpack(settings.RUN_FOLDER.path)
    pgbench = WHEEL.path(settings.RUN_FOLDER.path).with_name("pgbench")
    how = ("--no-vacuum", "--protocol=prepared", f"--client={min(clients, CLIENTS)}", "--jobs=2", f"--time={seconds}")
    where, environment = _server()
    with connection.cursor() as cursor:
        cursor.execute(MADE)
        try:
            done = subprocess.run(
                [pgbench, *how, f"--file={HOT_ROW}", where],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            cursor.execute("SELECT on_hand + (SELECT count(*) FROM bench_line) FROM bench_stock")
            (units,) = cursor.fetchone()
        finally:
            cursor.execute(f"DROP TABLE {TABLES}")
    said = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
    if done.returncode or said is None:
        raise RuntimeError(f"pgbench measured nothing: {done.stderr or done.stdout}")
    if units != STOCK:
        raise RuntimeError(f"{STOCK} units were in the hot row, and {units} are left or sold.")
    return float(said[1])


def _server() -> tuple[str, dict[str, str]]:
    """Where the shop's Postgres is, as its own programs are told; the password in the environment, not in `ps`."""
    where = conninfo_to_dict(conninfo())
    others = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    password = {"PGPASSWORD": str(where.pop("password"))} if "password" in where else {}
    return make_conninfo("", **where), {**others, **password, "LC_ALL": "C"}
