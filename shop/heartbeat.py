"""Heartbeats in Redis, which show the workers and schedulers of Celery that are alive."""

from __future__ import annotations

from typing import Any

from django_redis import get_redis_connection
from redis import RedisError

KEY = "shop:alive"
"""A sorted set: when each process was last alive, in seconds since 1970 by the clock of Redis."""
EXPIRES = 15
"""Seconds after which a silent process counts as dead. A worker reports every 2 s, beat at least every 5 s."""

WORKER = "worker"
BEAT = "beat"


def sign(kind: str, name: str) -> None:
    """Record in Redis that a process is alive. If Redis does not answer, do nothing: other checks report the outage.

    Args:
        kind: `WORKER` or `BEAT`.
        name: distinguishes processes of a kind.
    """
    client = get_redis_connection("default")
    try:
        now = _now(client)
        with client.pipeline(transaction=False) as pipe:
            pipe.zadd(KEY, {f"{kind} {name}": now})
            pipe.zremrangebyscore(KEY, "-inf", now - 10 * EXPIRES)
            pipe.zremrangebyscore(KEY, now + EXPIRES, "+inf")  # These times are from before the clock was set back.
            pipe.expire(KEY, 10 * EXPIRES)
            pipe.execute()
    except RedisError:
        pass


def alive() -> dict[str, int]:
    """Return how many processes of each kind are alive.

    Raises:
        RedisError: Redis does not answer.
    """
    client = get_redis_connection("default")
    found, now = {WORKER: 0, BEAT: 0}, _now(client)
    # Ignore a time far in the future: it was written before the clock of Redis was set back. A living process will soon
    # write a new time.
    for member in client.zrangebyscore(KEY, now - EXPIRES, now + EXPIRES):
        kind = bytes(member).decode().partition(" ")[0]
        found[kind] = found.get(kind, 0) + 1
    return found


def _now(client: Any) -> float:
    seconds, microseconds = client.time()
    return float(seconds) + microseconds / 1e6
