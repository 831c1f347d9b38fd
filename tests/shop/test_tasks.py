"""Celery's worker: what beat sends does not stand in line behind the wake-ups of the queue of orders."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from django.conf import settings
from redis import Redis

from shop.runtime import tasks
from shop.runtime.celery import app
from shop.sales import lifecycle
from tests.waiting import PATIENCE, wait_for

SAVES = 40


@pytest.fixture
def logging_stays() -> Iterator[None]:
    """A worker takes over the logging of its process, unless somebody else says that he has done so."""

    def done(**_: Any) -> None:
        pass

    setup_logging.connect(done)
    yield
    setup_logging.disconnect(done)


@pytest.fixture
def two_queues(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether saving has a queue of its own, and a worker takes no more than it can begin with."""
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


@pytest.mark.usefixtures("logging_stays")
@pytest.mark.parametrize("two_queues", [True, False], indirect=True, ids=["", "in one queue with it"])
def test_sales_are_tended_while_orders_keep_coming(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, two_queues: bool
) -> None:
    """All wake-ups are there before the first of them ends, and beat comes last; the worker has two threads."""
    saves: list[int] = []
    tended: list[int] = []
    begin = threading.Event()

    def save(**_: float) -> int:
        assert begin.wait(PATIENCE)
        saves.append(1)
        return 0

    monkeypatch.setattr("shop.runtime.tasks.save_queued", save)
    monkeypatch.setattr(lifecycle, "tend", lambda: tended.append(len(saves)))
    assert app.conf.broker_url == settings.CELERY_BROKER_URL
    options: dict[str, Any] = {"pool": "threads", "concurrency": 2, "perform_ping_check": False, "loglevel": "error"}
    with start_worker(app, **options):
        for _ in range(SAVES):
            tasks.wake_worker()
        tasks.advance_sales.delay()
        begin.set()
        wait_for(lambda: tended and len(saves) >= SAVES, "the worker to do all")
    if two_queues:
        assert tended[0] <= SAVES // 2
    else:
        assert tended[0] > SAVES // 2
