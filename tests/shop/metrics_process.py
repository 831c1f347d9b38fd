"""Processes that record metrics in a folder, forked from one that has imported the shop: an import takes a second."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace

import django
from django.apps import apps

if not apps.ready:  # in the process from which the others are forked
    django.setup()

from psycopg_pool import ConnectionPool

from shop.metrics import recorder, recording
from shop.metrics.folder import MetricsFolder
from tests.waiting import WAIT_TIMEOUT, wait_for

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])


@contextmanager
def recorded(
    folder: MetricsFolder, role: str, count: int, then: Callable[[Path], object] = str
) -> Iterator[BaseProcess]:
    """Run a process that counts, calls `then` and waits. Yield the process when it waits, and kill it at the end."""
    counted = FORKED.Event()
    process = FORKED.Process(target=record, args=(folder.path, role, count, then, counted))
    process.start()
    try:
        assert counted.wait(3 * WAIT_TIMEOUT)
        yield process
    finally:
        process.kill()
        process.join(WAIT_TIMEOUT)


def record(folder: Path, role: str, count: int, then: Callable[[Path], object], counted: Event) -> None:
    recording.start(role, folder, str)
    counting = recording.recorder()
    assert counting
    for _ in range(count):
        counting.refused_from_memory()
    counting.write()
    counting.web_process(busy=7, waiting=0)
    then(folder)
    counted.set()
    signal.pause()  # The test ends this process.


def count_in_a_fork(folder: Path) -> None:
    os.fork()
    count_once()


def count_in_a_child(folder: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=start_and_count_once, args=[folder])
    child.start()
    child.join()


def start_and_count_once(folder: Path) -> None:
    recording.start("web", folder, str)
    count_once()


def count_once() -> None:
    counting = recording.recorder()
    assert counting
    counting.refused_from_memory()


def wait_once_for_the_pool(folder: Path, address: str, seconds: SimpleQueue[float]) -> None:
    """Wait for the only connection of a pool while another caller holds the connection. Then report the pool twice.

    Args:
        seconds: queue that receives an upper bound of the wait, in seconds.
    """
    pool = ConnectionPool(address, min_size=1, max_size=1)
    pool.wait()  # Open the connection, so that the first caller does not wait for it.
    recorder.connection = SimpleNamespace(pool=pool)  # type: ignore[assignment]
    counting = recorder.Recorder("web", MetricsFolder(folder), str)
    held = pool.getconn()
    second = threading.Thread(target=lambda: pool.putconn(pool.getconn()))
    begun = time.monotonic()
    second.start()
    wait_for(lambda: pool.get_stats()["requests_waiting"], "the second to wait")
    waits_since = time.monotonic()
    wait_for(lambda: time.monotonic() >= waits_since + 0.002, "a wait that the pool counts: it counts milliseconds")
    pool.putconn(held)
    second.join()
    seconds.put(time.monotonic() - begun)
    for _ in range(2):  # The second report must not repeat the first one.
        counting.web_process(busy=0, waiting=0)
