"""Celery while its broker (Redis) is full or away.

A worker and beat keep running, log one line, and stop when they are told to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.consumer.heart import Heart
from django.conf import settings
from kombu.asynchronous.timer import Timer
from redis import Redis

from servers.valkey import temporary
from shop.runtime import tasks
from shop.runtime.broker import HeartOfOneAttempt, QuietConsumer
from shop.runtime.environment import broker_url
from tests.shop.web_server import CHECKOUT
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

Full = Callable[[], AbstractContextManager[None]]


class Part:
    """A Celery worker or beat process, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def lines(self, *words: str) -> list[str]:
        """Return the log lines that contain one of these words."""
        return [line for line in self.log.read_text().splitlines() if any(word in line for word in words)]

    def logs(self, text: str) -> None:
        """Wait for a log line that contains these words."""
        wait_for(lambda: self.lines(text) or self.process.poll() is not None, f"the log to say {text}")
        assert self.process.poll() is None, self.log.read_text()


@contextmanager
def celery(folder: Path, *arguments: str, **variables: str) -> Iterator[Part]:
    """Run a worker or beat on the servers of the tests."""
    database = settings.DATABASES["default"]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        "DATABASE_URL": f"postgres://{database['USER']}@/{database['NAME']}?host={database['HOST']}",
        "SECRET_KEY": settings.SECRET_KEY,
        **variables,
    }
    command = [sys.executable, "-m", "celery", "-A", "shop", *arguments]
    log = folder / f"{arguments[0]}.log"
    with log.open("wb") as file, subprocess.Popen(command, cwd=CHECKOUT, env=environment, stderr=file) as process:
        try:
            yield Part(process, log)
        finally:
            process.terminate()


def worker(folder: Path, **variables: str) -> AbstractContextManager[Part]:
    return celery(folder, "worker", "--pool", "threads", "--loglevel", "info", **variables)


def test_a_worker_goes_on_after_its_broker_was_full(redis: Redis, full: Full, tmp_path: Path) -> None:
    tasks.advance_sales.delay()
    task: bytes = redis.rpop("celery")
    with worker(tmp_path) as part:
        part.logs("ready.")
        # Queue the task and fill Redis in one step, so that the worker takes the task from a full Redis.
        with redis.pipeline(transaction=True) as pipe:
            pipe.lpush("celery", task)
            pipe.config_set("maxmemory", "1")
            pipe.execute()
        with full():
            part.logs("Taking tasks from the broker fails, and is tried again.")
        part.logs("Taking tasks from the broker works again")
        tasks.advance_sales.delay()
        part.logs("succeeded")
        assert len(part.lines("Taking tasks from the broker")) == 2
        assert len(part.lines("Connection to broker lost")) == 1
        assert part.lines("Traceback", "Cannot connect", "Frequent restarts") == [], part.log.read_text()


def test_a_worker_that_starts_while_its_broker_is_full_goes_on_later(redis: Redis, full: Full, tmp_path: Path) -> None:
    with full(), worker(tmp_path) as part:
        part.logs("Taking tasks from the broker fails, and is tried again.")
        redis.config_set("maxmemory", "0")
        part.logs("Taking tasks from the broker works again")
        assert part.lines("Traceback", "Cannot connect", "Frequent restarts") == [], part.log.read_text()


def test_beat_logs_one_line_while_its_broker_is_full(redis: Redis, full: Full, tmp_path: Path) -> None:
    with full(), celery(tmp_path, "beat", "--schedule", str(tmp_path / "schedule")) as part:
        part.logs("Sending tasks to the broker fails, and is tried again.")
        redis.config_set("maxmemory", "0")
        part.logs("Sending tasks to the broker works again")
        wait_for(lambda: redis.llen("celery"), "beat to send a task")
        assert len(part.lines("Sending tasks to the broker")) == 2
        assert part.lines("Traceback", "Message Error") == []


WAITS = pytest.mark.xfail(strict=True, raises=AssertionError)


@pytest.mark.parametrize("step", [HeartOfOneAttempt, pytest.param(Heart, marks=WAITS)])
def test_a_heartbeat_does_not_wait_until_the_broker_is_back(redis: Redis, step: type[Heart]) -> None:
    """The worker's loop sends the heartbeat. While the loop waits for the broker, the worker cannot stop."""
    with temporary() as valkey:
        app = Celery(broker=broker_url(valkey.url))
        consumer = SimpleNamespace(timer=Timer(), event_dispatcher=app.events.Dispatcher(app.connection_for_write()))
        step(consumer).start(consumer)
        valkey.stop()
        sending = threading.Thread(target=consumer.heart._send, args=["worker-heartbeat"], daemon=True)
        sending.start()
        sending.join(timeout=5)
        waits = sending.is_alive()
        valkey.start()
        sending.join(timeout=10)
        assert not waits
    assert HeartOfOneAttempt in QuietConsumer.Blueprint.default_steps
