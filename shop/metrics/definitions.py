"""The definitions of all metrics. A test compares them with the table in docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Args:
        name: its full name.
        help: what it measures, a text for `/metrics`.
        labels: the names of its labels.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterOf(Metric):
    """A number that only grows. After the end of the process that counted it, the number is kept."""


@dataclass(frozen=True, slots=True)
class HistogramOf(Metric):
    """The number of values up to each bound. After the end of the process that counted them, the numbers are kept.

    Args:
        buckets: the upper bounds of the values.
    """

    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GaugeOf(Metric):
    """A present value. After the end of the process that set it, the value is dropped.

    Args:
        joined: how the values of several processes are combined: their sum, the largest, or the latest.
    """

    joined: Literal["livesum", "livemax", "livemostrecent"] = "livesum"


@dataclass(frozen=True, slots=True)
class ReadOnRequest(Metric):
    """A present value that is read for each request of `/metrics`."""


LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
"""Bounds of the buckets in seconds, for durations of whole requests. The last bound is the time limit of a request."""
MOMENTS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bounds of the buckets in seconds, for durations of parts of a request, such as the wait for a lock."""

ORDERS = CounterOf(
    "shop_orders_total",
    "Order requests by the strategy of the sale and by result: placed, queued, replayed, or the type of the problem.",
    ("strategy", "result"),
)
# A separate counter has the label for the sale. Prometheus does not see the first value of a series as an increase, so
# with this label, the rates of `shop_orders_total` would miss the first seconds of each sale.
REFUSALS = CounterOf(
    "shop_sale_refusals_total",
    "Refused order requests by sale and type of the problem. The sale is `other` if the process has seen very many.",
    ("sale", "result"),
)
PLACING = HistogramOf(
    "shop_order_placing_seconds",
    "Time to place or refuse an order, from the checked request to the result.",
    ("strategy",),
    MOMENTS,
)
REQUESTS = HistogramOf(
    "shop_order_request_seconds",
    "Time from an order request that has arrived completely to its answer, by HTTP status.",
    ("status",),
    LATENCIES,
)
THREAD_WAIT = HistogramOf(
    "shop_order_thread_wait_seconds",
    "Part of that time in which the order request waited for a thread.",
    (),
    LATENCIES,
)
SOLD_OUT_FROM_MEMORY = CounterOf(
    "shop_sold_out_from_memory_total", "Orders refused as sold out from the memory of the web process."
)
LOCK_WAIT = HistogramOf(
    "shop_lock_wait_seconds",
    "Time that an order waited for a stock lock, by strategy and whether it was granted.",
    ("strategy", "granted"),
    MOMENTS,
)
LOCK_HOLD = HistogramOf(
    "shop_lock_hold_seconds", "Time that an order held a stock lock, its release included.", ("strategy",), MOMENTS
)
LEASES_LOST = CounterOf(
    "shop_lock_leases_lost_total", "Stock locks whose lease ended before the order released it.", ("strategy",)
)
GROUP_SIZE = HistogramOf(
    "shop_group_commit_orders",
    "Orders that group-commit has put into one transaction.",
    (),
    (1, 2, 4, 8, 16, 32, 64, 128),
)
GROUP_WAIT = HistogramOf(
    "shop_group_commit_wait_seconds", "Time that an order waited until its batch of group-commit began.", (), MOMENTS
)
COMMIT = HistogramOf(
    "shop_commit_seconds",
    "Time of the statement that has committed an order, or a batch of them, in Postgres.",
    (),
    MOMENTS,
)
QUEUE_WAIT = HistogramOf(
    "shop_queue_wait_seconds",
    "Time from queueing an order until a worker has saved it, by the clocks of Redis and the worker.",
    (),
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
QUEUE_DONE = CounterOf(
    "shop_queue_done_total", "Orders that workers took off the queue: saved, refused, or dead-letter.", ("result",)
)
QUEUE_LENGTH = ReadOnRequest("shop_queue_orders", "Orders on the queue in Redis.")
QUEUE_AGE = ReadOnRequest("shop_queue_oldest_seconds", "Age of the oldest order on the queue; 0 if it is empty.")
REDIS_UP = ReadOnRequest("shop_redis_up", "1 if Redis answered when the metrics were asked for, else 0.")
PROCESSES = ReadOnRequest("shop_processes", "Processes that share the folder of metrics, by role.", ("role",))
BROKEN_SKUS = GaugeOf(
    "shop_broken_skus", "SKUs whose stock is not conserved, by the last reconciliation.", joined="livemostrecent"
)
DRIFT = GaugeOf(
    "shop_drift_units",
    "Units by which copies of the stock in Redis were wrong, by the last reconciliation.",
    joined="livemostrecent",
)
REPAIRS = CounterOf("shop_repairs_total", "Repairs that reconciling has made.")
RECONCILED = GaugeOf(
    "shop_reconciled_timestamp_seconds", "Time of the last complete reconciliation, since 1970.", joined="livemax"
)
THREADS_BUSY = GaugeOf("shop_web_threads_busy", "Threads of the web processes that answer a request.")
REQUESTS_WAITING = GaugeOf("shop_web_requests_waiting", "Requests that wait for a thread of a web process.")
POOL_SIZE = GaugeOf("shop_postgres_pool_connections", "Connections to Postgres in the pools of the web processes.")
POOL_IDLE = GaugeOf("shop_postgres_pool_idle", "Those of them that no request uses.")
POOL_WAITING = GaugeOf("shop_postgres_pool_waiting", "Requests that wait for a connection of the pool.")
POOL_WAITS = CounterOf("shop_postgres_pool_waits_total", "Requests that had to wait for a connection of the pool.")
POOL_WAIT = CounterOf(
    "shop_postgres_pool_wait_seconds_total",
    "Seconds for which they have waited. A wait of less than a millisecond counts as 0.",
)

METRICS = [value for value in list(globals().values()) if isinstance(value, Metric)]
