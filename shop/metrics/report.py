"""The content of `/metrics`, and the check of who may read it."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

from django.conf import settings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector
from redis import RedisError

from inventory.strategies import registry
from shop.metrics import definitions as of
from shop.metrics.folder import ROLES, MetricsFolder

PATH = "/metrics"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PROXIED = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded", "via")
"""Headers that a proxy sets. A request with such a header may come from another machine, through a local proxy."""


def may_read(address: str, headers: Mapping[str, str]) -> bool:
    """Return whether a client may read the metrics: it sends METRICS_TOKEN, or it is on this machine and is no proxy.

    Args:
        address: IP address of the client.
        headers: request headers by lower-case name.
    """
    if settings.METRICS_TOKEN:
        given = headers.get("authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {settings.METRICS_TOKEN}".encode()):
            return True
    try:
        here = ip_address(address).is_loopback
    except ValueError:
        return False
    return here and not any(name in headers for name in PROXIED)


def report() -> bytes:
    """Return the metrics of all processes that share the folder, as text for Prometheus."""
    collected = CollectorRegistry(auto_describe=False)
    collected.register(Collector(MetricsFolder(Path(settings.METRICS_FOLDER))))
    return generate_latest(collected)


class Collector:
    """Adds up the files of the metrics folder, and reads the present values of the `ReadOnRequest` metrics."""

    def __init__(self, folder: MetricsFolder) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        yield from MultiProcessCollector.merge(self._folder.files())
        processes = GaugeMetricFamily(of.PROCESSES.name, of.PROCESSES.help, labels=of.PROCESSES.labels)
        alive = [slot.rpartition("-")[0] for slot in self._folder.taken()]
        for role in ROLES:
            processes.add_metric([role], alive.count(role))
        yield processes
        yield from queue()


def queue() -> Iterable[Metric]:
    """Return whether Redis answers, and if it does, the length of the queue and the age of its oldest order."""
    waiting = registry.queue()
    try:
        return [_value(of.REDIS_UP, 1), _value(of.QUEUE_LENGTH, len(waiting)), _value(of.QUEUE_AGE, waiting.age())]
    except RedisError:
        return [_value(of.REDIS_UP, 0)]


def _value(metric: of.Metric, value: float) -> Metric:
    return GaugeMetricFamily(metric.name, metric.help, value)
