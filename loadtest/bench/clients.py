"""Benchmark clients, which place orders without HTTP. A client is a thread with its own database connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from unittest import mock
from uuid import UUID

import uuid_utils.compat
from django.conf import settings
from django.db import connection, connections
from django.utils import timezone

from inventory.errors import Refusal, SoldOut, TryAgain
from inventory.requests import OrderRequest, RequestItem, Save
from inventory.strategies import optimistic, registry
from inventory.strategies.base import Strategy
from inventory.strategies.locks import stock_lock
from inventory.strategies.segmented import HeldItem
from inventory.strategies.segmented_lock import SegmentedLock
from shop.orders.saving import save

GIVE_UP_AFTER = 60.0
"""Seconds for which a client may still try to place its last order after the end of a measurement."""


@dataclass(frozen=True)
class Plan:
    """The parameters of one measurement.

    Attributes:
        customers: user ids. Each user is one client, which orders again as soon as its order is placed.
        seconds: duration after which no order begins. Clients stop earlier if the stock is sold out.
        segments: number of segments for `segmented-lock`; other strategies ignore it.
        quantity: units in each order.
        work: seconds that each order pauses in the critical section, to simulate a call to another service.
    """

    sale: int
    sku: str
    strategy: str
    customers: Sequence[int]
    seconds: float
    segments: int = 1
    quantity: int = 1
    work: float = 0.0


@dataclass
class ClientResults:
    """Counts of the orders of clients.

    `placed`, `failed_updates` and `gave_up` count only what happens before the plan's `seconds` are over.

    Attributes:
        placed: orders that were placed.
        placed_late: orders that began in time and were placed later.
        failed_updates: updates of `optimistic` that failed because the row's version had changed.
        gave_up: number of answers that told a client to try again. The client then tried again.
        held_all: orders that held the locks of all segments.
        waits_ms: for each order, milliseconds from its beginning until it was placed.
        cpu: share of this machine's processors that was busy, from 0 to 1.
    """

    placed: int = 0
    placed_late: int = 0
    failed_updates: int = 0
    gave_up: int = 0
    held_all: int = 0
    waits_ms: list[float] = field(default_factory=list)
    cpu: float = 0.0

    def add(self, other: ClientResults) -> None:
        """Add the counts of other clients that ran at the same time."""
        self.placed += other.placed
        self.placed_late += other.placed_late
        self.failed_updates += other.failed_updates
        self.gave_up += other.gave_up
        self.held_all += other.held_all
        self.waits_ms += other.waits_ms


def run(plan: Plan, wait_for_start: Callable[[], object] = lambda: None) -> ClientResults:
    """Run the clients of a plan in threads of this process.

    Args:
        wait_for_start: called when all clients are connected. They start when it returns.

    Raises:
        Exception: the first error of a client.
    """
    clients = Clients(plan)
    with (
        mock.patch.object(optimistic, "compare_and_set", clients.compare_and_set),
        ThreadPoolExecutor(len(plan.customers)) as pool,
    ):
        running = [pool.submit(clients.order_until_the_end, customer) for customer in plan.customers]
        clients.start(wait_for_start)
    errors = [error for each in running if (error := each.exception())]
    # A failed client breaks the barrier, so all others raise BrokenBarrierError. Raise the error of the failed client.
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    results = ClientResults()
    for each in running:
        results.add(each.result())
    results.failed_updates = sum(at < clients.end for at in clients.failed_updates)
    results.held_all = len(clients.held_all)
    return results


class Clients:
    """The clients of a plan in this process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.end = 0.0
        self.barrier = threading.Barrier(len(plan.customers) + 1)
        # Count with lists, not numbers: several threads can append to a list without losing an update.
        self.failed_updates: list[float] = []
        self.held_all: list[UUID] = []
        self.strategy: Strategy = (
            CountingSegmentedLock(plan.segments, self.held_all)
            if plan.strategy == SegmentedLock.name
            else registry.get(plan.strategy)
        )
        self._compare_and_set = optimistic.compare_and_set

    def start(self, wait_for_start: Callable[[], object]) -> None:
        """Start the clients once all are connected. If a client cannot connect, no client starts."""
        try:
            self.barrier.wait()
            wait_for_start()
            self.end = time.monotonic() + self.plan.seconds
            self.barrier.wait()
        except threading.BrokenBarrierError:
            pass
        except BaseException:
            self.barrier.abort()
            raise

    def order_until_the_end(self, customer: int) -> ClientResults:
        results = ClientResults()
        try:
            connection.ensure_connection()
            self.barrier.wait()
            self.barrier.wait()
            while (began := time.monotonic()) < self.end and self._order(customer, results):
                placed = time.monotonic()
                results.waits_ms.append((placed - began) * 1000)
                results.placed += placed < self.end
                results.placed_late += placed >= self.end
        except BaseException:
            self.barrier.abort()
            raise
        finally:
            connections.close_all()
        return results

    def _order(self, customer: int, results: ClientResults) -> bool:
        """Try until an order is placed. Return False if the stock is sold out."""
        request = self._request(customer)
        while True:
            try:
                self.strategy.place(request, self._work_and_save)
            except TryAgain:
                now = time.monotonic()
                results.gave_up += now < self.end
                if now > self.end + GIVE_UP_AFTER:
                    raise
            except SoldOut:
                return False
            else:
                return True

    def _request(self, customer: int) -> OrderRequest:
        identity = uuid_utils.compat.uuid7()
        return OrderRequest(
            id=identity,
            customer=customer,
            sale=self.plan.sale,
            items=(RequestItem(self.plan.sku, self.plan.quantity, Decimal("9.90")),),
            key=str(identity),
            body_hash="",
            created_at=timezone.now(),
        )

    def _work_and_save(self, requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        if self.plan.work:
            time.sleep(self.plan.work)
        return save(requests)

    def compare_and_set(self, item: RequestItem) -> None:
        """Call the original `compare_and_set` of `optimistic`, and note the time if the update fails."""
        try:
            self._compare_and_set(item)
        except optimistic.VersionChanged:
            self.failed_updates.append(time.monotonic())
            raise


class CountingSegmentedLock(SegmentedLock):
    """`segmented-lock` with a given number of segments. It counts the orders that held the locks of all segments."""

    def __init__(self, segments: int, held_all: list[UUID]) -> None:
        super().__init__(stock_lock, wait=settings.STOCK_LOCK_WAIT, segments=segments)
        self.held_all = held_all

    def sell(self, order: OrderRequest, held: Sequence[HeldItem], save: Save) -> None:
        super().sell(order, held, save)
        if any(each.number is None for each in held):
            self.held_all.append(order.id)
