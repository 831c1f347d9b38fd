"""Orders per second with one and with five stock segments, in this process and without HTTP.

Each order pauses while it holds the lock, as a call to another service would. The figures show how many critical
sections run at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from statistics import median
from uuid import UUID

import uuid_utils.compat
from django.conf import settings
from django.db import connections
from django.utils import timezone

from inventory.errors import Refusal, TryAgain
from inventory.requests import OrderRequest, RequestItem
from inventory.strategies.locks import stock_lock
from inventory.strategies.segmented_lock import SegmentedLock
from loadtest import outcome, preparation
from loadtest.burst import Burst
from shop.orders.saving import save

WORK = 0.005
"""Seconds of work while the lock is held."""

SEGMENT_COUNTS = (1, 5)
"""The numbers of segments to compare."""

STOCK = 1_000_000


def measure(*, customers: Sequence[int], buyers: int = 32, rounds: int = 5, seconds: float = 3.0) -> dict[str, float]:
    """Return orders per second by number of segments: medians of interleaved rounds, after a warm-up round.

    Args:
        customers: user ids that order.
        buyers: number of threads; each orders again as soon as it is answered.
        seconds: duration of each measurement.

    Raises:
        RuntimeError: orders were lost, so the run has no valid throughput.
    """
    figures: dict[int, list[float]] = {segments: [] for segments in SEGMENT_COUNTS}
    for number in range(rounds + 1):
        for segments in SEGMENT_COUNTS:
            per_s = orders_per_s(segments, customers[:buyers], seconds)
            if number:
                figures[segments].append(per_s)
    return {str(segments): round(median(each), 1) for segments, each in figures.items()}


def orders_per_s(segments: int, customers: Sequence[int], seconds: float) -> float:
    """Measure once, on a new product."""
    burst = preparation.prepare(strategy=SegmentedLock.name, units=STOCK, limit=STOCK, customers=list(customers))
    strategy = SegmentedLock(stock_lock, wait=settings.STOCK_LOCK_WAIT, segments=segments)
    strategy.preheat(list(burst.products), lambda requests: set())
    start = threading.Barrier(len(customers) + 1)
    with ThreadPoolExecutor(len(customers)) as pool:
        answers = pool.map(partial(_buy, strategy, burst, start, seconds), customers)
        start.wait()
        started = time.monotonic()
        placed = list(answers)
    took = time.monotonic() - started
    (figures,) = outcome.stock_figures(burst)
    outcome.close_sale(burst)
    if not figures.conserved or figures.sold != sum(placed):
        raise RuntimeError(f"{segments} segments: {sum(placed)} orders were placed, but the tables hold {figures}.")
    return sum(placed) / took


def _buy(strategy: SegmentedLock, burst: Burst, start: threading.Barrier, seconds: float, customer: int) -> int:
    placed = 0
    try:
        start.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                strategy.place(_request(burst, customer), _work_and_save)
            except TryAgain:
                continue
            placed += 1
    finally:
        connections.close_all()
    return placed


def _work_and_save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
    time.sleep(WORK)
    return save(requests)


def _request(burst: Burst, customer: int) -> OrderRequest:
    identity = uuid_utils.compat.uuid7()
    return OrderRequest(
        id=identity,
        customer=customer,
        sale=burst.sale,
        items=tuple(RequestItem(sku, 1, Decimal("9.90")) for sku in burst.products),
        key=str(identity),
        body_hash="",
        created_at=timezone.now(),
    )
