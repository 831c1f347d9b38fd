"""Servers for the optional locks: for each server, the setting with its address and a function that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from servers import zookeeper as zookeeper_server
from servers.valkey import temporary
from tests.locking.etcd_support import running_etcd
from tests.locking.zookeeper_support import running_zookeeper

needs_zookeeper = pytest.mark.skipif(
    not zookeeper_server.available() and not os.environ.get("CI"),
    reason="ZooKeeper is not installed; on Debian: apt-get install zookeeper default-jre-headless",
)


@contextmanager
def etcd() -> Iterator[str]:
    with running_etcd() as server:
        yield server.url


@contextmanager
def zookeeper() -> Iterator[str]:
    with running_zookeeper() as server:
        yield server.hosts


@contextmanager
def three_valkeys() -> Iterator[str]:
    with ExitStack() as running:
        yield ",".join(running.enter_context(temporary()).url for _ in range(3))


SERVERS: Mapping[str, tuple[str, Callable[[], AbstractContextManager[str]]]] = {
    "etcd-lock": ("ETCD_URL", etcd),
    "redlock": ("REDLOCK_URLS", three_valkeys),
    "zookeeper-lock": ("ZOOKEEPER_HOSTS", zookeeper),
}
"""For each strategy: the setting with the address of its lock server, and a context manager that runs the server."""
