"""The Celery worker: beat's tasks do not wait behind the tasks that save queued orders."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from django.conf import settings
from redis import RedisError

from shop.runtime import tasks
from shop.runtime.celery import app
from shop.sales import lifecycle
from tests.waiting import WAIT_TIMEOUT, wait_for

SAVES = 40
TWO_THREADS: dict[str, Any] = {"pool": "threads", "concurrency": 2, "perform_ping_check": False, "loglevel": "error"}


@pytest.fixture
def logging_stays() -> Iterator[None]:
    """Keep the worker from changing this process's logging."""

    def keep(**_: Any) -> None:
        pass

    setup_logging.connect(keep)
    yield
    setup_logging.disconnect(keep)


@pytest.fixture
def two_queues(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Return whether saving has its own queue and a worker fetches no more tasks than it has free threads."""
    separate: bool = request.param
    routes, ahead = app.conf.task_routes, app.conf.worker_prefetch_multiplier
    app.conf.task_routes = routes if separate else {}
    app.conf.worker_prefetch_multiplier = ahead if separate else 4
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()
    yield separate
    app.conf.task_routes, app.conf.worker_prefetch_multiplier = routes, ahead
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()


@pytest.mark.usefixtures("redis", "logging_stays")
@pytest.mark.parametrize("two_queues", [True, False], indirect=True, ids=["", "in one queue with it"])
def test_advancing_sales_does_not_wait_behind_saving(monkeypatch: pytest.MonkeyPatch, two_queues: bool) -> None:
    """Advancing sales does not wait behind saving, although its task is queued last."""
    saves: list[int] = []
    advanced: list[int] = []
    begin = threading.Event()

    def save(**_: float) -> int:
        assert begin.wait(WAIT_TIMEOUT)
        saves.append(1)
        return 0

    monkeypatch.setattr("shop.runtime.tasks.save_queued", save)
    monkeypatch.setattr(lifecycle, "advance", lambda: advanced.append(len(saves)))
    assert app.conf.broker_url == settings.CELERY_BROKER_URL
    with start_worker(app, **TWO_THREADS):
        for _ in range(SAVES):
            tasks.wake_worker()
        tasks.advance_sales.delay()
        begin.set()
        wait_for(lambda: advanced and len(saves) >= SAVES, "the worker to finish")
    if two_queues:
        assert advanced[0] <= SAVES // 2
    else:
        assert advanced[0] > SAVES // 2


@pytest.mark.usefixtures("redis", "logging_stays")
def test_waiting_reconciliations_do_not_take_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second round ends at once while the first one waits, for example for a stock row that somebody has locked."""
    waits, go_on, advanced = threading.Event(), threading.Event(), threading.Event()

    def reconcile() -> None:
        waits.set()
        assert go_on.wait(3 * WAIT_TIMEOUT)
        raise RedisError("the end of this test's round")

    monkeypatch.setattr("shop.runtime.tasks.reconcile_and_audit", reconcile)
    monkeypatch.setattr(lifecycle, "advance", advanced.set)
    with start_worker(app, **TWO_THREADS):
        tasks.reconcile.delay()
        assert waits.wait(WAIT_TIMEOUT)
        tasks.reconcile.delay()
        tasks.advance_sales.delay()
        in_time = advanced.wait(WAIT_TIMEOUT)
        go_on.set()
    assert in_time
    assert not tasks._reconciling.locked()
