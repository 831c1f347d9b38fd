"""Counts what one process does, in its files of the folder of metrics."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from multiprocessing.util import Finalize
from typing import Any

from django.db import connection
from prometheus_client import Counter, Gauge, Histogram, values

from inventory.observing import Observer
from inventory.outages import outages
from shop.metrics import definitions as of
from shop.metrics.folder import MetricsFolder
from shop.sales import offers

PAUSE = 0.25
"""Seconds between two writes. A killed process takes at most so much of its counts with it."""
MOST = 100_000
"""Reports that are kept until the next write."""
WRITING = "To write metrics"


class Recorder(Observer):
    """What the shop and its strategies report, counted in the files of this process. Any thread may call it.

    A report is only noted by its thread. A thread of the recorder writes all of them every `PAUSE` seconds: written
    one by one between other work, each would cost the order path several times as much.

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
        self._reports: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque(maxlen=MOST)
        self._orders = cache(_counter(of.ORDERS).labels)
        self._placing = cache(_histogram(of.PLACING).labels)
        self._requests = cache(_histogram(of.REQUESTS).labels)
        self._thread_wait = _histogram(of.THREAD_WAIT)
        self._from_memory = _counter(of.SOLD_OUT_FROM_MEMORY)
        self._lock_wait = cache(_histogram(of.LOCK_WAIT).labels)
        self._lock_hold = cache(_histogram(of.LOCK_HOLD).labels)
        self._leases_lost = cache(_counter(of.LEASES_LOST).labels)
        self._group_size = _histogram(of.GROUP_SIZE)
        self._queue_done = cache(_counter(of.QUEUE_DONE).labels)
        for result in ("saved", "refused", "dead-letter"):
            # Begin with 0: for Prometheus, a series that begins with the first dead letter has not increased.
            self._queue_done(result)
        self._broken = _gauge(of.BROKEN_SKUS)
        self._drift = _gauge(of.DRIFT)
        self._repairs = _counter(of.REPAIRS)
        self._reconciled = _gauge(of.RECONCILED)
        self._threads_busy = _gauge(of.THREADS_BUSY)
        self._requests_waiting = _gauge(of.REQUESTS_WAITING)
        self._pool_size = _gauge(of.POOL_SIZE)
        self._pool_idle = _gauge(of.POOL_IDLE)
        self._pool_waiting = _gauge(of.POOL_WAITING)
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        # Not `atexit`, which is not called in processes that multiprocessing has started, such as the web processes.
        Finalize(None, self.write, exitpriority=0)

    def write(self) -> None:
        """Write all reports into the files."""
        while self._reports:
            count, arguments = self._reports.popleft()
            count(*arguments)

    def order(self, sale: int, seconds: float, result: str | Exception) -> None:
        """An order was placed, queued, replayed, or refused with an error."""
        offer = offers.cache.get(sale).value
        # Not the error itself: it holds on to the request.
        name = result if isinstance(result, str) else self._slug_of(result)
        self._report(self._count_order, "none" if offer is None else offer.strategy, seconds, name)

    def order_request(self, status: int, seconds: float, *, waited: float) -> None:
        """An order request was answered.

        Args:
            seconds: since it has arrived completely.
            waited: seconds of them in which it waited for a thread.
        """
        self._report(self._count_request, str(status), seconds, waited)

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
        self._report(self._count_wait, strategy, "yes" if granted else "no", seconds)

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        self._report(self._count_hold, strategy, seconds, lost)

    def batch_saved(self, orders: int) -> None:
        self._report(self._group_size.observe, orders)

    def refused_from_memory(self) -> None:
        self._report(self._from_memory.inc)

    def left_queue(self, *, saved: int, refused: int) -> None:
        self._report(self._queue_done("saved").inc, saved)
        self._report(self._queue_done("refused").inc, refused)

    def dead_letter(self) -> None:
        self._report(self._queue_done("dead-letter").inc)

    def _report(self, count: Callable[..., object], *arguments: Any) -> None:
        self._reports.append((count, arguments))

    def _begin(self) -> None:
        """Start the thread that writes. A child after `fork` has none; its parent writes what was reported before."""
        self._reports.clear()
        threading.Thread(target=self._write_on, name="metrics", daemon=True).start()

    def _write_on(self) -> None:
        while True:
            time.sleep(PAUSE)
            try:
                self.write()
            except Exception as error:  # Such as a child after `fork` that cannot take a slot.
                outages.failed(WRITING, error)
            else:
                outages.worked(WRITING)

    def _count_order(self, strategy: str, seconds: float, result: str) -> None:
        self._orders(strategy, result).inc()
        self._placing(strategy).observe(seconds)

    def _count_request(self, status: str, seconds: float, waited: float) -> None:
        self._requests(status).observe(seconds)
        self._thread_wait.observe(waited)

    def _count_wait(self, strategy: str, granted: str, seconds: float) -> None:
        self._lock_wait(strategy, granted).observe(seconds)

    def _count_hold(self, strategy: str, seconds: float, lost: bool) -> None:  # noqa: FBT001 - called by position
        self._lock_hold(strategy).observe(seconds)
        # With 0 too: for Prometheus, a series that begins with the first lost lease has not increased.
        self._leases_lost(strategy).inc(lost)


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
