"""Counts what one process does, in its files of the folder of metrics."""

from __future__ import annotations

import os
from collections.abc import Callable

from django.db import connection
from prometheus_client import Counter, Gauge, Histogram, values

from inventory.observing import Observer
from shop.metrics import definitions as of
from shop.metrics.folder import MetricsFolder
from shop.sales import offers


class Recorder(Observer):
    """What the shop and its strategies report, counted in the files of this process. Any thread may call it.

    Args:
        role: what this process is: one of `folder.ROLES`.
        slug_of: returns the type of the problem with which an error is answered.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, role: str, folder: MetricsFolder, slug_of: Callable[[Exception], str]) -> None:
        self._slug_of = slug_of
        # prometheus_client reads this at the first metric.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder.path)
        values.ValueClass = values.MultiProcessValue(Slot(role, folder))
        self._orders = _counter(of.ORDERS)
        self._placing = _histogram(of.PLACING)
        self._requests = _histogram(of.REQUESTS)
        self._thread_wait = _histogram(of.THREAD_WAIT)
        self._from_memory = _counter(of.SOLD_OUT_FROM_MEMORY)
        self._lock_wait = _histogram(of.LOCK_WAIT)
        self._lock_hold = _histogram(of.LOCK_HOLD)
        self._leases_lost = _counter(of.LEASES_LOST)
        self._group_size = _histogram(of.GROUP_SIZE)
        self._queue_done = _counter(of.QUEUE_DONE)
        self.left_queue(saved=0, refused=0)
        # For Prometheus, a series that begins with the first dead letter has not increased.
        self._queue_done.labels("dead-letter")
        self._broken = _gauge(of.BROKEN_SKUS)
        self._drift = _gauge(of.DRIFT)
        self._repairs = _counter(of.REPAIRS)
        self._reconciled = _gauge(of.RECONCILED)
        self._threads_busy = _gauge(of.THREADS_BUSY)
        self._requests_waiting = _gauge(of.REQUESTS_WAITING)
        self._pool_size = _gauge(of.POOL_SIZE)
        self._pool_idle = _gauge(of.POOL_IDLE)
        self._pool_waiting = _gauge(of.POOL_WAITING)

    def order(self, sale: int, seconds: float, result: str | Exception) -> None:
        """An order was placed, queued, replayed, or refused with an error."""
        offer = offers.cache.get(sale).value
        strategy = "none" if offer is None else offer.strategy
        self._orders.labels(strategy, result if isinstance(result, str) else self._slug_of(result)).inc()
        self._placing.labels(strategy).observe(seconds)

    def order_request(self, status: int, seconds: float) -> None:
        """An order request was answered."""
        self._requests.labels(str(status)).observe(seconds)

    def thread_waited(self, seconds: float) -> None:
        """An order request got a thread."""
        self._thread_wait.observe(seconds)

    def web_process(self, *, busy: int, waiting: int) -> None:
        """Note how many threads of this process answer, how many requests wait for one, and how full the pool is."""
        self._threads_busy.set(busy)
        self._requests_waiting.set(waiting)
        pool = getattr(connection, "pool", None)
        if pool is not None:
            found = pool.get_stats()
            self._pool_size.set(found["pool_size"])
            self._pool_idle.set(found["pool_available"])
            self._pool_waiting.set(found["requests_waiting"])

    def reconciled(self, *, at: float, broken: int, repairs: int, drift: int) -> None:
        """Redis was reconciled with Postgres.

        Args:
            at: seconds since 1970.
            broken: skus that are not conserved.
            drift: units by which copies were wrong.
        """
        self._broken.set(broken)
        self._drift.set(drift)
        self._repairs.inc(repairs)
        self._reconciled.set(at)

    def lock_waited(self, strategy: str, seconds: float, *, granted: bool) -> None:
        self._lock_wait.labels(strategy, "yes" if granted else "no").observe(seconds)

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        self._lock_hold.labels(strategy).observe(seconds)
        # With 0 too: a series that begins with the first lost lease would look like no increase.
        self._leases_lost.labels(strategy).inc(lost)

    def batch_saved(self, orders: int) -> None:
        self._group_size.observe(orders)

    def refused_from_memory(self) -> None:
        self._from_memory.inc()

    def left_queue(self, *, saved: int, refused: int) -> None:
        self._queue_done.labels("saved").inc(saved)
        self._queue_done.labels("refused").inc(refused)

    def dead_letter(self) -> None:
        self._queue_done.labels("dead-letter").inc()


class Slot:
    """The slot of this process. A child after `fork`, such as one of Celery's pool, takes its own.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, role: str, folder: MetricsFolder) -> None:
        self._role = role
        self._folder = folder
        self._process = os.getpid()
        self._name = folder.take_slot(role)

    def __call__(self) -> str:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._name = self._folder.take_slot(self._role)
        return self._name


def _counter(metric: of.CounterOf) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=None)


def _histogram(metric: of.HistogramOf) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=None)


def _gauge(metric: of.GaugeOf) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, multiprocess_mode=metric.joined, registry=None)
