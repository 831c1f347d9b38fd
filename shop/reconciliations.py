"""What the last reconciliations have found, kept in Redis: the overview shows it on every machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django_redis import get_redis_connection
from redis import RedisError

KEY = "shop:reconciled"
"""A list of the last reconciliations, the newest first."""
KEPT = 2
EXPIRES = 3600
"""Seconds after which the last one is forgotten. Beat reconciles every minute."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What a reconciliation has found.

    Args:
        age: seconds since it ended, by the clock of Redis.
        broken: skus that are not conserved.
        repairs: number of repairs.
        units: units by which copies were wrong.
    """

    age: float
    broken: Sequence[str]
    repairs: int
    units: int


def note(*, broken: Sequence[str], repairs: int, units: int) -> None:
    """Keep what a reconciliation has found. If Redis does not answer, do nothing: operators see that it is away."""
    client: Any = get_redis_connection("default")
    try:
        found = json.dumps({"at": client.time()[0], "broken": broken, "repairs": repairs, "units": units})
        with client.pipeline(transaction=True) as pipe:
            pipe.lpush(KEY, found)
            pipe.ltrim(KEY, 0, KEPT - 1)
            pipe.expire(KEY, EXPIRES)
            pipe.execute()
    except RedisError:
        pass


def last() -> list[Reconciliation]:
    """Return the last reconciliations, the newest first; none if there was none in the last hour.

    Raises:
        RedisError: Redis does not answer.
    """
    client: Any = get_redis_connection("default")
    now = client.time()[0]
    found = (json.loads(each) for each in client.lrange(KEY, 0, -1))
    return [Reconciliation(max(0, now - each.pop("at")), **each) for each in found]
