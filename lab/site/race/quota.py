"""The time per hour that the races of one visitor may take. It is counted in Redis."""

from __future__ import annotations

from django_redis import get_redis_connection

from lab.site.race.state import Race

HOUR = 3600
SECONDS_PER_VISITOR = 1800.0
"""Seconds per hour that the races of one visitor may take, so that other visitors can race too."""


class QuotaUsed(Exception):
    """The visitor's races have used up the visitor's time for this hour.

    Attributes:
        wait: seconds until the visitor may start a race again.
    """

    def __init__(self, wait: int) -> None:
        super().__init__(wait)
        self.wait = wait


def charge(race: Race, visitor: str) -> None:
    """Charge a race's time limit to its visitor's hour. The hour begins with the visitor's first race.

    The whole limit is charged in advance, so that a race is also charged if its process dies.

    Raises:
        QuotaUsed: too little time is left.
        RedisError: Redis did not answer.
    """
    client, key = get_redis_connection("default"), quota_key(visitor)
    taken, left = client.pipeline().set(key, 0, ex=HOUR, nx=True).get(key).ttl(key).execute()[1:]
    if float(taken) + race.limit > SECONDS_PER_VISITOR:
        raise QuotaUsed(max(1, left))
    client.incrbyfloat(key, race.limit)


def refund(race: Race, visitor: str, seconds: float) -> None:
    """Refund the unused part of a race's time limit.

    Args:
        race: the race, which was charged before.
        visitor: the visitor who was charged.
        seconds: duration of the race in seconds.
    """
    client, key = get_redis_connection("default"), quota_key(visitor)
    if client.exists(key):  # If the visitor's hour is over, the key is gone, and a new key would never expire.
        client.incrbyfloat(key, seconds - race.limit)


def quota_key(visitor: str) -> str:
    return f"lab:raced:{visitor}"
