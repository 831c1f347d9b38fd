"""The results of the last reconciliations, stored in Redis, so that the overview shows them on every machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django_redis import get_redis_connection
from redis import RedisError

KEY = "shop:reconciled"
"""A Redis list of the results, newest first."""
KEPT = 2
EXPIRES = 3600
"""Seconds after the last reconciliation until the list is deleted. Beat reconciles every minute."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result of a reconciliation.

    Args:
        age: seconds since its end, by the clock of Redis.
        broken: skus that break the conservation law.
        repairs: number of repairs.
        units: number of units by which copies of the stock in Redis were wrong.
    """

    age: float
    broken: Sequence[str]
    repairs: int
    units: int


def note(*, broken: Sequence[str], repairs: int, units: int) -> None:
    """Store the result of a reconciliation. If Redis does not answer, do nothing: other checks report the outage."""
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
    """Return the results of the last reconciliations, newest first; empty if there was none in the last hour.

    Raises:
        RedisError: Redis does not answer.
    """
    client: Any = get_redis_connection("default")
    now = client.time()[0]
    found = (json.loads(each) for each in client.lrange(KEY, 0, -1))
    return [Reconciliation(max(0, now - each.pop("at")), **each) for each in found]
