"""Start a race. A lock in the shop's Redis ensures that all web processes together run one race at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

from django_redis import get_redis_connection
from redis import RedisError

from lab.sandbox import isolation
from lab.site.race import quota
from lab.site.race.child import FOLDER, run_child
from lab.site.race.state import Race, Racer
from locking import Lease, LockUnavailable, RedisLock

logger = logging.getLogger(__name__)


class RaceRunning(Exception):
    """Another race is running."""


def race_lock() -> RedisLock:
    """Return the lock that allows one race at a time."""
    return RedisLock(get_redis_connection("default"), "lab-race", ttl=10.0)


def start_race(names: Sequence[str], *, clients: int, stock: int, visitor: str) -> Race:
    """Start a race. Return while it runs.

    Args:
        names: names of different ways of selling.
        clients: number of customers who order at the same time.
        stock: units for each racer.
        visitor: IP address of the visitor who starts the race.

    Raises:
        RaceRunning: another race is running.
        QuotaUsed: the visitor's races have used up the visitor's time for this hour.
        LockUnavailable, RedisError: Redis did not answer.
        ServerError: the run folder of races cannot be removed, for example because servers run in it.
    """
    lease = race_lock().acquire(blocking=False)
    if lease is None:
        raise RaceRunning
    try:
        race = Race(str(uuid4()), clients, stock, [Racer(name) for name in names])
        isolation.folder(FOLDER).delete()  # This may fail, so charge the visitor after it.
        quota.charge(race, visitor)
        race.save()
        threading.Thread(target=_run, args=(race, lease, visitor), name="race", daemon=True).start()
    except BaseException:
        lease.release()
        raise
    return race


def _run(race: Race, lease: Lease, visitor: str) -> None:
    started = time.monotonic()
    try:
        run_child(race, lease)
    except Exception:
        logger.exception("The race %s failed.", race.id)
    finally:
        race.over = True
        with suppress(RedisError):
            race.save()
        with suppress(RedisError):
            quota.refund(race, visitor, time.monotonic() - started)
        with suppress(LockUnavailable):
            lease.release()
