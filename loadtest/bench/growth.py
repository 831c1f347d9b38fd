"""Measure the CPU milliseconds of an order with the default strategy, by number of skus and by number of clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from typing import Any

from inventory.strategies import registry
from loadtest import outcome, preparation
from loadtest.bench import cpu
from loadtest.bench.strategy_measurements import STOCK, send
from loadtest.burst import Burst
from loadtest.local_shop import LocalShop

CLIENTS, SKUS = (8, 32, 128, 512), (1, 10, 100, 1000)
USUAL_CLIENTS, USUAL_SKUS = 32, 1
POINTS = (
    *((USUAL_SKUS, clients) for clients in CLIENTS),
    *((skus, USUAL_CLIENTS) for skus in SKUS if skus != USUAL_SKUS),
)
"""(skus, clients) of each measurement. Either the skus or the clients grow, not both. An order is for one unit of one
sku."""


def measure(
    shop: LocalShop, customers: list[int], *, rounds: int, seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return `skus`, `clients`, `cpu_ms` and `orders_per_s` of each measurement: medians of interleaved rounds.

    Args:
        seconds: duration of each measurement.
        say: shows the progress.

    Raises:
        RuntimeError: units or orders were lost, so the run has no valid figures.
    """
    say("Cost by skus and clients: preparing")
    bursts = {
        skus: preparation.prepare(strategy=registry.DEFAULT, units=STOCK, limit=STOCK, customers=customers, skus=skus)
        for skus in SKUS
    }
    measured: dict[tuple[int, int], list[tuple[float, float]]] = {point: [] for point in POINTS}
    for number in range(rounds + 1):
        for skus, clients in POINTS:
            say(f"Round {number} of {rounds} (0 warms up): cost with {skus} skus, {clients} clients")
            figures = _measure(bursts[skus], shop, clients=clients, seconds=seconds)
            if number:
                measured[skus, clients].append(figures)
    for burst in bursts.values():
        outcome.close_sale(burst)
    return [
        {
            "skus": skus,
            "clients": clients,
            "cpu_ms": round(median(cost for cost, _ in rows), 2),
            "orders_per_s": round(median(rate for _, rate in rows), 1),
        }
        for (skus, clients), rows in measured.items()
    ]


def _measure(burst: Burst, shop: LocalShop, *, clients: int, seconds: float) -> tuple[float, float]:
    bodies = [json.dumps(burst.body({sku: 1})) for sku in burst.products]
    before = sum(figures.sold for figures in outcome.stock_figures(burst))
    used = cpu.seconds(shop)
    load = send(burst, shop, bodies, clients=clients, seconds=seconds)
    used = cpu.seconds(shop) - used
    after = outcome.stock_figures(burst)
    placed = load["answers"].get("201", 0)
    if not all(figures.conserved for figures in after) or sum(figures.sold for figures in after) - before != placed:
        raise RuntimeError(f"{placed} orders were placed for {len(bodies)} skus, but the tables hold others.")
    return used * 1000 / max(1, placed), placed / load["seconds"]
