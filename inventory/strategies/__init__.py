"""The strategies that a sale may choose. What is wrong on purpose is not here: no registry outside the lab knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from urllib.parse import quote

from django.conf import settings
from django_redis import get_redis_connection

from inventory.counters import Counters
from inventory.strategies.base import Strategy
from inventory.strategies.guarded_update import GuardedUpdate
from inventory.strategies.locked import Locked
from inventory.strategies.lua import Lua
from inventory.strategies.optimistic import Optimistic
from locking import RedisLock

__all__ = ["NAMES", "Strategy", "counters", "get", "given_back"]

NAMES = ("guarded-update", "lua", "optimistic", "redis-lock")


def get(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        KeyError: there is no such strategy; `NAMES` lists them.
    """
    return _strategies()[name]


def given_back(quantities: Sequence[tuple[str, int]]) -> None:
    """Tell every strategy of units that are on hand again: whose sale sells the sku now need not be whose order it was.

    Args:
        quantities: pairs of sku and units, committed to Postgres.
    """
    for strategy in _strategies().values():
        strategy.given_back(quantities)


def counters() -> Counters:
    """The stock in the shop's Redis."""
    return Counters(get_redis_connection("default"))


def stock_lock(sku: str) -> RedisLock:
    """The lock of a sku in the shop's Redis. A lock's name has no braces; a sku may."""
    return RedisLock(get_redis_connection("default"), f"stock:{quote(sku, safe='/:')}", ttl=settings.STOCK_LOCK_TTL)


@cache
def _strategies() -> Mapping[str, Strategy]:
    strategies: list[Strategy] = [
        GuardedUpdate(),
        Lua(counters),
        Locked("redis-lock", stock_lock, wait=settings.STOCK_LOCK_WAIT),
        Optimistic(),
    ]
    return {strategy.name: strategy for strategy in strategies}
