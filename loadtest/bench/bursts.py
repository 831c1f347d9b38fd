"""Let clients order a new product for a number of seconds, and check the tables afterwards."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings

from inventory.strategies.locks import stock_lock
from inventory.strategies.segmented_lock import SegmentedLock
from loadtest import outcome, preparation
from loadtest.bench.clients import ClientResults, Plan

STOCK = 1_000_000
Run = Callable[[Plan], ClientResults]
"""Function that runs the clients of a plan: `ClientProcesses.run` or, in tests, `clients.run`."""


def measure(
    run: Run, strategy: str, customers: Sequence[int], *, seconds: float, units: int = STOCK, **plan: Any
) -> ClientResults:
    """Let clients order a new product, and return their counts.

    Args:
        run: runs the clients.
        strategy: the strategy of the sale.
        customers: user ids; each user is one client.
        units: stock of the product.
        plan: further arguments of `Plan`.

    Raises:
        RuntimeError: units or orders were lost, so the run has no valid figures.
    """
    burst = preparation.prepare(strategy=strategy, units=units, limit=STOCK, customers=[*customers])
    (sku,) = burst.products
    request = Plan(burst.sale, sku, strategy, customers, seconds, **plan)
    if strategy == SegmentedLock.name:
        SegmentedLock(stock_lock, wait=settings.STOCK_LOCK_WAIT, segments=request.segments).preheat(
            [sku], lambda _: set()
        )
    results = run(request)
    (figures,) = outcome.stock_figures(burst)
    outcome.close_sale(burst)
    placed = results.placed + results.placed_late
    if not figures.conserved or figures.sold != placed * request.quantity:
        raise RuntimeError(f"{strategy}: {placed} orders were placed, but the tables hold {figures}.")
    return results


def machine() -> dict[str, Any]:
    """Return processors and Python version of this machine, for reports."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
