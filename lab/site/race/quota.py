"""The share of an hour that one visitor's races may take, counted in Redis."""

from __future__ import annotations

from django_redis import get_redis_connection

from lab.site.race.state import Race

HOUR = 3600
SECONDS_PER_VISITOR = 1800.0
"""Seconds of an hour that the races of one visitor may take. The rest is for other visitors."""


class QuotaUsed(Exception):
    """The visitor's races have taken their share of the hour.

    Attributes:
        wait: seconds until the visitor may start a race again.
    """

    def __init__(self, wait: int) -> None:
        super().__init__(wait)
        self.wait = wait


def charge(race: Race, visitor: str) -> None:
    """Charge a race's time limit to its visitor's hour, which begins with the first race.

    The whole limit is charged in advance, so a race whose process dies is charged too.

    Raises:
        QuotaUsed: too little is left.
        RedisError: Redis did not answer.
    """
    client, key = get_redis_connection("default"), quota_key(visitor)
    taken, left = client.pipeline().set(key, 0, ex=HOUR, nx=True).get(key).ttl(key).execute()[1:]
    if float(taken) + race.limit > SECONDS_PER_VISITOR:
        raise QuotaUsed(max(1, left))
    client.incrbyfloat(key, race.limit)


def refund(race: Race, visitor: str, seconds: float) -> None:
    """Refund the part of its time limit that a race has not used.

    Args:
        race: the race, charged before.
        visitor: the visitor who was charged.
        seconds: how long the race took.
    """
    client, key = get_redis_connection("default"), quota_key(visitor)
    if client.exists(key):  # The visitor's hour may be over, and a new key would never expire.
        client.incrbyfloat(key, seconds - race.limit)


def quota_key(visitor: str) -> str:
    return f"lab:raced:{visitor}"
