"""Measurements of one strategy: throughput and latency over HTTP, and commands per order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any
from unittest import mock

from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis.connection import AbstractConnection

from inventory.strategies import registry
from loadtest import outcome, preparation
from loadtest.bench import cpu
from loadtest.bench.buying import buy_one
from loadtest.burst import Burst
from loadtest.local_shop import LocalShop
from loadtest.tokens import access_token
from shop.orders.queued import save_queued

PLAIN = "plain"
EMPTY = "empty"
PEER = "peer:redis-py-lock"
PATHS = {PLAIN: "/plain/", EMPTY: "/api/bench/empty/", PEER: "/api/bench/redis-py-lock/"}
WITHOUT_ORDERS = (PLAIN, EMPTY)
"""Endpoints that answer requests and place no order."""
STOCK = 1_000_000


def measure(name: str, shop: LocalShop, customers: list[int], *, clients: int, seconds: float) -> dict[str, Any]:
    """Return the figures of orders with ample stock and, for a strategy, of refusals with too little stock."""
    selling = measure_burst(name, shop, customers, clients=clients, seconds=seconds, units=STOCK, quantity=1)
    if name in PATHS:
        return {**selling, "refusals_per_s": 0.0, "refusal_cpu_ms": 0.0}
    refusing = measure_burst(name, shop, customers, clients=clients, seconds=seconds, units=1, quantity=2)
    return {
        **selling,
        "refusals_per_s": refusing["refused_per_s"],
        "refusal_cpu_ms": refusing["cpu_ms"],
        "conserved": selling["conserved"] and refusing["conserved"],
    }


def measure_burst(
    name: str, shop: LocalShop, customers: list[int], *, clients: int, seconds: float, units: int, quantity: int
) -> dict[str, Any]:
    """Run one burst, check the tables afterwards, and return the figures."""
    burst = preparation.prepare(
        strategy=name if name in registry.NAMES else registry.DEFAULT,
        units=units,
        quantity=quantity,
        limit=STOCK,
        customers=customers,
    )
    body = json.dumps(burst.body(burst.cart()))
    used = cpu.seconds(shop)
    load = send(burst, shop, [body], path=PATHS.get(name, burst.path), clients=clients, seconds=seconds)
    outcome.wait_for_queue(burst)
    used = cpu.seconds(shop) - used
    (figures,) = outcome.stock_figures(burst)
    outcome.close_sale(burst)
    placed = load["answers"].get("201", 0) + load["answers"].get("202", 0)
    refused = load["answers"].get("409", 0)
    return {
        "per_s": placed / load["seconds"],
        "refused_per_s": refused / load["seconds"],
        "others": sum(load["answers"].values()) - placed - refused,
        # CPU time of one request, with any answer. It includes the later saving of queued orders.
        "cpu_ms": used * 1000 / max(1, sum(load["answers"].values())),
        **{name: load[name] for name in ("p50_ms", "p95_ms", "p99_ms", "client_min", "client_max", "generator_cpu")},
        # A run that oversold or lost a confirmed order has no valid throughput.
        "conserved": figures.conserved and (name in WITHOUT_ORDERS or figures.sold == placed),
    }


def send(
    burst: Burst, shop: LocalShop, bodies: Sequence[str], *, clients: int, seconds: float, path: str = ""
) -> dict[str, Any]:
    """Run the load generator, and return its counts.

    Args:
        bodies: bodies of the requests, sent in turn.
        path: the path of the endpoint; empty for the order endpoint.
    """
    plan = {
        "url": shop.url,
        "path": path or burst.path,
        "bodies": bodies,
        "tokens": [access_token(customer) for customer in burst.customers],
        "clients": clients,
        "seconds": seconds,
    }
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench.load"],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        check=True,
    )
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted


def commands_per_order(name: str, customers: list[int]) -> dict[str, float]:
    """Return the numbers of SQL statements and Redis round trips of one order, when all caches are filled."""
    burst = preparation.prepare(strategy=name, units=STOCK, limit=STOCK, customers=customers)
    sent: list[int] = []
    send = AbstractConnection.send_packed_command

    def count(self: AbstractConnection, *args: Any, **options: Any) -> Any:
        sent.append(1)
        return send(self, *args, **options)

    def buy(customer: int) -> None:
        buy_one(sale=burst.sale, product=product, customer=customer)

    (product,) = burst.products.values()
    for customer in customers[:2]:
        buy(customer)
    with mock.patch.object(AbstractConnection, "send_packed_command", count), CaptureQueriesContext(connection) as sql:
        buy(customers[2])
    save_queued()
    outcome.close_sale(burst)
    return {"sql_per_order": len(sql), "redis_per_order": len(sent)}


def summarize_rounds(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over the rounds, and the fewest and most orders per second."""
    latencies, clients = ("p50_ms", "p95_ms", "p99_ms"), ("client_min", "client_max")
    names = ("per_s", "cpu_ms", "refusals_per_s", "refusal_cpu_ms", *latencies, *clients, "generator_cpu")
    return {
        **{name: median(row[name] for row in rounds) for name in names},
        "least": min(row["per_s"] for row in rounds),
        "most": max(row["per_s"] for row in rounds),
        "others": sum(row["others"] for row in rounds),
        "conserved": all(row["conserved"] for row in rounds),
    }
