"""The state of the parts on which sales depend: queue, Celery, locks, and the response times of Postgres and Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q
from django.db.models.functions import Now
from django_redis import get_redis_connection
from redis import RedisError
from redis.exceptions import ResponseError

from inventory.strategies import registry
from locking.contrib.django.admin import most_wanted
from locking.registry import HeldLock
from shop import heartbeat, reconciliations
from shop.models import Order, Sale
from shop.reconciliations import Reconciliation

SOON = 60
"""An order that expires within this number of seconds counts as expiring soon."""
LATE = 60
"""A pending order is late this number of seconds after its time to pay has ended. Beat expires orders every 10 s."""
AHEAD = 3600
"""Celery has to run from this number of seconds before the opening of a sale."""
UNLOADED = 15
"""Seconds for which preheating a sale may be overdue before the overview warns. Beat tries it every 5 s."""
DEAD_LETTERS = 10
"""Maximum number of dead letters on the overview. The newest are shown."""
DeadLetter = tuple[datetime, str, str, str]
"""A dead letter: its time, the id of the order, the queued order, and the reason."""
PROBE = "shop:probe"
"""Key in Redis that the overview writes to learn whether Redis takes writes."""


@dataclass(frozen=True)
class Health:
    """The state of the servers at one moment.

    Args:
        queue_age: seconds since the oldest queued order was queued.
        expiring: pending orders that will expire within `SOON` seconds if they are not paid.
        late: pending orders whose time to pay ended more than `LATE` seconds ago.
        unloaded: names of sales that open in less than `PREHEAT_LEAD` - `UNLOADED` seconds and are not loaded. Paused
            sales are left out.
        needed: whether Celery has to run: a sale is open or opens soon, or an order is not paid yet.
        postgres_ms: milliseconds until Postgres answered.
        redis_error: why Redis does not answer; empty if it answers. Without an answer, the figures of Redis are 0.
        redis_refusal: why Redis answers but refuses writes; empty if it takes them.
        heartbeats: whether Redis has taken the heartbeats of the last seconds. If Redis has not, a process without a
            heartbeat may be alive.
        reconciled: the last two reconciliations, newest first.
    """

    expiring: int
    late: int
    needed: bool
    postgres_ms: float
    unloaded: Sequence[str] = ()
    queue: int = 0
    queue_age: float = 0.0
    dead_letters: Sequence[DeadLetter] = ()
    workers: int = 0
    beats: int = 0
    redis_ms: float = 0.0
    redis_error: str = ""
    redis_refusal: str = ""
    heartbeats: bool = True
    locks: list[HeldLock] = field(default_factory=list)
    reconciled: Sequence[Reconciliation] = ()

    @property
    def waiters(self) -> int:
        return sum(lock.waiters for lock in self.locks)


def look() -> Health:
    """Read the state from Postgres and Redis."""
    due = Now() - timedelta(seconds=settings.ORDER_TTL)
    pending = Order.objects.filter(state=Order.State.PENDING).order_by()
    orders = pending.aggregate(
        expiring=Count("pk", filter=Q(payable_from__lte=due + timedelta(seconds=SOON))),
        late=Count("pk", filter=Q(payable_from__lte=due - timedelta(seconds=LATE))),
    )
    soon = Sale.objects.filter(opens_at__lte=Now() + timedelta(seconds=AHEAD), closes_at__gt=Now())
    of_tables: dict[str, Any] = {
        **orders,
        "unloaded": _unloaded(),
        "needed": soon.exists() or pending.exists(),
        "postgres_ms": _milliseconds(_ask_postgres),
    }
    client = get_redis_connection("default")
    try:
        redis_ms = _milliseconds(client.ping)
        refusal = _refusal(client)
        queue, alive = registry.queue(), heartbeat.alive()
        return Health(
            **of_tables,
            redis_ms=redis_ms,
            redis_refusal=refusal,
            heartbeats=not refusal,
            queue=len(queue),
            queue_age=queue.age(),
            dead_letters=queue.dead_letters.newest(DEAD_LETTERS),
            workers=alive[heartbeat.WORKER],
            beats=alive[heartbeat.BEAT],
            locks=most_wanted()[0],
            reconciled=reconciliations.last(),
        )
    except RedisError as error:
        return Health(**of_tables, redis_error=str(error))


def _refusal(client: Any) -> str:
    """Return why Redis refuses writes, or "" if it takes them.

    This tries a write, which finds every cause: a full memory, a replica, a disk to which Redis cannot save. `INFO` has
    a different field for each cause.
    """
    try:
        client.set(PROBE, "", ex=heartbeat.EXPIRES)
    except ResponseError as error:
        return str(error)
    return ""


def _unloaded() -> list[str]:
    lead = timedelta(seconds=max(0, settings.PREHEAT_LEAD - UNLOADED))
    coming = Sale.objects.filter(opens_at__gt=Now(), opens_at__lte=Now() + lead, paused_at=None)
    return [str(sale) for sale in coming.order_by("opens_at") if not sale.is_loaded]


def _ask_postgres() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _milliseconds(ask: Callable[[], object]) -> float:
    begun = time.perf_counter()
    ask()
    return (time.perf_counter() - begun) * 1000
