"""Each figure of the overview, read from its document: first in a quiet shop, then in the situation that it reports.

The times of answers are in test_metrics.py, which runs a web server; sales and waiting rooms in test_overview.py.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from redis import Redis

from inventory.counters.whole import counter_key
from inventory.queue.stream import STREAM
from locking import RedisLock, registry
from shop import heartbeat
from shop.models import Order
from shop.orders import payments
from shop.overview import document
from tests.factories import on_sale
from tests.shop.conftest import buy
from tests.shop.test_admin import text
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

SLOW = 0.4
"""Seconds for which a server does not answer. A quiet one takes less than a tenth of a second."""


@contextmanager
def three_queued_orders(redis: Redis) -> Iterator[None]:
    """Queue three orders, and date the oldest back by 70 s."""
    offer = on_sale({"a": 5}, strategy="lua-queue")
    for _ in range(3):
        buy(offer, a=1)
    oldest, *others = redis.xrange(STREAM)  # type: ignore[misc]
    redis.delete(STREAM)
    at = int(bytes(oldest[0]).partition(b"-")[0])
    redis.xadd(STREAM, oldest[1], id=f"{at - 70_000}-0")
    for name, fields in others:
        redis.xadd(STREAM, fields, id=name)
    yield


@contextmanager
def two_unpaid_orders(redis: Redis) -> Iterator[None]:
    """Let two of four orders expire within a minute: one is paid, and one has more time."""
    offer = on_sale({"a": 5})
    orders = [buy(offer, a=1).order.pk for _ in range(4)]
    for seconds, order in zip((1, 59, 59, 80), orders, strict=True):
        payable_from = Now() - timedelta(seconds=settings.ORDER_TTL - seconds)
        Order.objects.filter(pk=order).update(payable_from=payable_from)
    payments.receive_payment("pay_1", order=orders[2], amount=Order.objects.get(pk=orders[2]).total)
    yield


@contextmanager
def signs_of_life(redis: Redis) -> Iterator[None]:
    """Write heartbeats of two workers and beat, as their processes do. A third worker has been silent for too long."""
    heartbeat.sign(heartbeat.BEAT, "a")
    for name in "abc":
        heartbeat.sign(heartbeat.WORKER, name)
    redis.zincrby(heartbeat.KEY, -heartbeat.EXPIRES - 1, f"{heartbeat.WORKER} c")
    yield


@contextmanager
def two_locks_and_a_waiter(redis: Redis) -> Iterator[None]:
    def held(name: str) -> AbstractContextManager[object]:
        return RedisLock(redis, name, ttl=WAIT_TIMEOUT).hold(timeout=WAIT_TIMEOUT)

    def wait() -> None:
        with held("stock:a"):
            pass

    waiting = threading.Thread(target=wait)
    with held("stock:a"), held("stock:b"):
        waiting.start()
        wait_for(lambda: any(lock.waiters for lock in registry.held(redis)), "the thread to wait")
        yield
    waiting.join(WAIT_TIMEOUT)


@contextmanager
def a_wrong_counter(redis: Redis) -> Iterator[None]:
    on_sale({"a": 10}, strategy="lua")
    redis.decrby(counter_key("a"), 2)
    yield


@contextmanager
def a_slow_redis(redis: Redis) -> Iterator[None]:
    """Pause Redis when the overview measures the latency of Postgres, which it does just before that of Redis."""

    def pause(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql == "SELECT 1":
            redis.client_pause(int(SLOW * 1000))
        return execute(sql, *rest)

    with connection.execute_wrapper(pause):
        yield


@contextmanager
def a_slow_postgres(redis: Redis) -> Iterator[None]:
    """Stop the Postgres backend of this connection while the overview measures its latency."""
    process = connection.connection.info.backend_pid

    def stop(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql == "SELECT 1":
            os.kill(process, signal.SIGSTOP)
            threading.Timer(SLOW, os.kill, (process, signal.SIGCONT)).start()
        return execute(sql, *rest)

    with connection.execute_wrapper(stop):
        yield


def figures_of(document: dict[str, Any]) -> dict[str, str]:
    """Return the figures in the JSON of the overview by their labels, and the verdict."""
    parts = document["parts"]
    shown = re.findall(r"<dt>(.*?)</dt>(.*?)</div>", parts["figures"], re.DOTALL)
    return {text(name): text(value) for name, value in [*shown, ("verdict", parts["verdict"])]}


FIGURES: dict[str, tuple[Callable[[Redis], AbstractContextManager[None]], str, str]] = {
    "Queued": (three_queued_orders, "0", r"3 oldest 7\d s"),
    "Expire within a minute": (two_unpaid_orders, "0", "2"),
    "Workers": (signs_of_life, "0", "2"),
    "Beat": (signs_of_life, "–", "alive"),
    "Locks": (two_locks_and_a_waiter, "0 0 wait", "2 1 wait"),
    "Postgres": (a_slow_postgres, r"\d?\d\.\d ms", r"\d{3}\.\d ms"),
    "Redis": (a_slow_redis, r"\d?\d\.\d ms", r"\d{3}\.\d ms"),
    "verdict": (a_wrong_counter, "Conserved .* twice.", r".* Redis differs .* a : 8 in Redis, 10 on hand: -2"),
}
"""For each figure: the situation that it reports, and patterns of what the overview shows before and in it."""


@pytest.mark.parametrize("figure", FIGURES)
def test_the_overview_shows_the_real_figure(
    admin_client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch, figure: str
) -> None:
    def shows(pattern: str) -> bool:
        monkeypatch.setattr(document, "shared", document.SharedFigures())  # a new cache
        found.append(figures_of(admin_client.get("/admin/live/").json())[figure])
        return re.fullmatch(pattern, found[-1]) is not None

    found: list[str] = []
    made_real, quiet, real = FIGURES[figure]
    wait_for(lambda: shows(quiet), f"{figure} of a quiet shop")  # A busy machine may answer late once.
    with made_real(redis):
        assert shows(real), found
