"""The recorder of a process, which writes its metrics into files in the metrics folder."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import Counter as CounterOfValues
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from multiprocessing.util import Finalize

from django.db import connection
from prometheus_client import Counter, Gauge, Histogram, values

from inventory.observing import Observer
from inventory.outages import outages
from shop.metrics import definitions as of
from shop.metrics.folder import MetricsFolder
from shop.sales import offers

PAUSE = 0.25
"""Seconds between two writes. A killed process loses the counts of at most this time."""
MOST_SALES = 100
"""Maximum number of sales whose refusals a process counts separately, because each sale adds series to the metrics."""
MOST = 100_000
"""Maximum number of increments, and of observations, that wait for the next write. The oldest in excess are dropped."""
WRITING = "Writing metrics"


class Recorder(Observer):
    """Counts the events of the shop and its strategies in this process. Any thread may call it.

    For an order, the calling thread only appends events to a list. A thread of the recorder adds the events up, and
    writes them every `PAUSE` seconds. Writing each event at once would cost the order path several times as much.
    Figures of a process and of a reconciliation are written at once.

    Args:
        role: role of this process, one of `folder.ROLES`.
        slug_of: returns the problem type of an error.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, role: str, folder: MetricsFolder, slug_of: Callable[[Exception], str]) -> None:
        self._slug_of = slug_of
        # prometheus_client reads this variable when the first metric is created.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder.path)
        values.ValueClass = values.MultiProcessValue(Slot(role, folder))
        self._increments: deque[tuple[Counter, float]] = deque(maxlen=MOST)
        self._observations: deque[tuple[Histogram, float]] = deque(maxlen=MOST)
        self._orders = cache(_counter(of.ORDERS).labels)
        self._refusals = cache(partial(_of_sale, _counter(of.REFUSALS), set()))
        self._placing = cache(_histogram(of.PLACING).labels)
        self._requests = cache(_histogram(of.REQUESTS).labels)
        self._thread_wait = _histogram(of.THREAD_WAIT)
        self._from_memory = _counter(of.SOLD_OUT_FROM_MEMORY)
        self._lock_wait = cache(_histogram(of.LOCK_WAIT).labels)
        self._lock_hold = cache(_histogram(of.LOCK_HOLD).labels)
        self._leases_lost = cache(_counter(of.LEASES_LOST).labels)
        self._group_size = _histogram(of.GROUP_SIZE)
        self._group_wait = _histogram(of.GROUP_WAIT)
        self._commit = _histogram(of.COMMIT)
        self._queue_wait = _histogram(of.QUEUE_WAIT)
        self._queue_done = cache(_counter(of.QUEUE_DONE).labels)
        for result in ("saved", "refused", "dead-letter"):
            # Create the series with 0. If it began with 1, Prometheus would not see the first event as an increase.
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
        self._pool_waits = _counter(of.POOL_WAITS)
        self._pool_wait = _counter(of.POOL_WAIT)
        # Do not fork during a write: the child would inherit a lock of prometheus_client that no thread releases.
        self._writing = threading.Lock()
        os.register_at_fork(
            before=self._writing.acquire, after_in_parent=self._writing.release, after_in_child=self._begin_in_child
        )
        self._begin()
        # Do not use `atexit`: it does not run in processes of multiprocessing, such as the web processes.
        Finalize(None, self.write, exitpriority=0)

    def write(self) -> None:
        """Write all events into the files."""
        with self._writing:
            added: defaultdict[Counter, float] = defaultdict(float)
            for _ in range(len(self._increments)):
                counter, amount = self._increments.popleft()
                added[counter] += amount
            observed: defaultdict[Histogram, list[float]] = defaultdict(list)
            for _ in range(len(self._observations)):
                histogram, value = self._observations.popleft()
                observed[histogram].append(value)
            for counter, amount in added.items():
                counter.inc(amount)
            for histogram, found in observed.items():
                _observe_all(histogram, found)

    def order(self, sale: int, seconds: float, result: str | Exception) -> None:
        """Count an order that was placed, queued, replayed, or refused with an error."""
        offer = offers.cache.get(sale).value
        strategy = "none" if offer is None else offer.strategy
        name = result if isinstance(result, str) else self._slug_of(result)
        self._increments.append((self._orders(strategy, name), 1))
        if offer is not None and isinstance(result, Exception):
            self._increments.append((self._refusals(sale, name), 1))
        self._observations.append((self._placing(strategy), seconds))

    def order_request(self, status: int, seconds: float, *, waited: float) -> None:
        """Count a response to an order request.

        Args:
            seconds: time since the request arrived completely.
            waited: seconds of that time in which the request waited for a thread.
        """
        self._observations.append((self._requests(str(status)), seconds))
        self._observations.append((self._thread_wait, waited))

    def web_process(self, *, busy: int, waiting: int) -> None:
        """Set the gauges of this web process: busy threads, waiting requests and the state of the connection pool."""
        self._threads_busy.set(busy)
        self._requests_waiting.set(waiting)
        pool = getattr(connection, "pool", None)
        if pool is not None:
            found = pool.pop_stats()  # The counts since the last call. Counts of 0 are missing.
            self._pool_size.set(found["pool_size"])
            self._pool_idle.set(found["pool_available"])
            self._pool_waiting.set(found["requests_waiting"])
            self._pool_waits.inc(found.get("requests_queued", 0))
            self._pool_wait.inc(found.get("requests_wait_ms", 0) / 1000)

    def reconciled(self, *, at: float, broken: int, repairs: int, drift: int) -> None:
        """Record the result of a reconciliation.

        Args:
            at: time in seconds since 1970.
            broken: number of skus that are not conserved.
            drift: number of units by which copies in Redis were wrong.
        """
        self._broken.set(broken)
        self._drift.set(drift)
        self._repairs.inc(repairs)
        self._reconciled.set(at)

    def lock_waited(self, strategy: str, seconds: float, *, granted: bool) -> None:
        self._observations.append((self._lock_wait(strategy, "yes" if granted else "no"), seconds))

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        self._observations.append((self._lock_hold(strategy), seconds))
        # Add `lost` even if it is 0, to create the series with 0. If the series began with 1, Prometheus would not see
        # the first lost lease as an increase.
        self._increments.append((self._leases_lost(strategy), lost))

    def batch_saved(self, orders: int) -> None:
        self._observations.append((self._group_size, orders))

    def batch_waited(self, since: float, until: float) -> None:
        self._observations.append((self._group_wait, until - since))

    def committed(self, seconds: float) -> None:
        self._observations.append((self._commit, seconds))

    def refused_from_memory(self) -> None:
        self._increments.append((self._from_memory, 1))

    def left_queue(self, *, ages: Sequence[float], refused: int) -> None:
        self._observations.extend((self._queue_wait, age) for age in ages)
        self._increments.append((self._queue_done("saved"), len(ages)))
        self._increments.append((self._queue_done("refused"), refused))

    def dead_letter(self) -> None:
        self._increments.append((self._queue_done("dead-letter"), 1))

    def _begin_in_child(self) -> None:
        self._writing.release()
        # The parent process writes the events from before the fork.
        self._increments.clear()
        self._observations.clear()
        self._begin()

    def _begin(self) -> None:
        """Start the thread that writes the events. A forked child has to start a thread of its own."""
        threading.Thread(target=self._write_on, name="metrics", daemon=True).start()

    def _write_on(self) -> None:
        while True:
            time.sleep(PAUSE)
            try:
                self.write()
            except Exception as error:  # For example, a forked child cannot take a slot.
                outages.failed(WRITING, error)
            else:
                outages.worked(WRITING)


class Slot:
    """The slot of this process in the metrics folder. A forked child, such as one in Celery's pool, takes its own slot.

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
            self._name = self._folder.take_slot(self._role)
            self._process = os.getpid()
        return self._name


def _observe_all(histogram: Histogram, found: list[float]) -> None:
    """Add many values to a histogram with one write per bucket. prometheus_client's `observe` adds only one value.

    This function uses private attributes of prometheus_client, so requirements-image.in pins the minor version.
    """
    histogram._sum.inc(sum(found))
    for bucket, times in CounterOfValues(bisect_left(histogram._upper_bounds, value) for value in found).items():
        histogram._buckets[bucket].inc(times)


def _of_sale(counter: Counter, seen: set[int], sale: int, result: str) -> Counter:
    """Return the series of a sale and a result. Sales after the first `MOST_SALES` share the series "other".

    Args:
        seen: the sales that have series of their own. The function adds to it.
    """
    if sale in seen or len(seen) < MOST_SALES:
        seen.add(sale)
        return counter.labels(str(sale), result)
    return counter.labels("other", result)


def _counter(metric: of.CounterOf) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=None)


def _histogram(metric: of.HistogramOf) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=None)


def _gauge(metric: of.GaugeOf) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, multiprocess_mode=metric.joined, registry=None)
