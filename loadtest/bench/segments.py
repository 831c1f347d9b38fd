"""Orders per second of one segment and of five, with work in the critical section: in-process, without HTTP.

What is measured is how many sections run at the same time. The work is a pause, as of a call to another service, made
while the lock is held.
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
from inventory.strategies.registry import stock_lock
from inventory.strategies.segmented_lock import SegmentedLock
from loadtest import burst as bursts
from shop.orders.saving import save

WORK = 0.005
"""Seconds of work under the lock."""

NUMBERS = (1, 5)
"""How many segments are held against each other."""

STOCK = 1_000_000


def measure(*, customers: Sequence[int], buyers: int = 32, rounds: int = 5, seconds: float = 3.0) -> dict[str, float]:
    """Orders per second by number of segments: medians of rounds in turn, after one that warms up.

    Postgres and Redis run. Each buyer is a thread that orders again as soon as he was answered.

    Args:
        customers: ids of users; those who buy.
        seconds: of each measurement.

    Raises:
        RuntimeError: the law was broken, and such a run has no throughput.
    """
    figures: dict[int, list[float]] = {number: [] for number in NUMBERS}
    for turn in range(rounds + 1):
        for number in NUMBERS:
            per_s = orders_per_s(number, customers[:buyers], seconds)
            if turn:
                figures[number].append(per_s)
    return {str(number): round(median(each), 1) for number, each in figures.items()}


def orders_per_s(segments: int, customers: Sequence[int], seconds: float) -> float:
    """One measurement on a product of its own."""
    burst = bursts.prepare(
        host="",
        strategy=SegmentedLock.name,
        rung="",
        units=STOCK,
        skus=1,
        quantity=1,
        limit=STOCK,
        customers=list(customers),
    )
    strategy = SegmentedLock(stock_lock, wait=settings.STOCK_LOCK_WAIT, segments=segments)
    strategy.preheat(list(burst.products), lambda requests: set())
    go = threading.Barrier(len(customers) + 1)
    with ThreadPoolExecutor(len(customers)) as pool:
        answers = pool.map(partial(_buy, strategy, burst, go, seconds), customers)
        go.wait()
        begun = time.monotonic()
        placed = list(answers)
    took = time.monotonic() - begun
    (figures,) = bursts.figures(burst, host="")
    bursts.finish(burst)
    if not figures.conserved or figures.sold != sum(placed):
        raise RuntimeError(f"{segments} segments: {sum(placed)} placed, but the tables say {figures}.")
    return sum(placed) / took


def _buy(strategy: SegmentedLock, burst: bursts.Burst, go: threading.Barrier, seconds: float, customer: int) -> int:
    placed = 0
    try:
        go.wait()
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


def _request(burst: bursts.Burst, customer: int) -> OrderRequest:
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
