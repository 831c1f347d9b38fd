"""The strategies that a sale may choose. What is wrong on purpose is not here: no registry outside the lab knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from django_redis import get_redis_connection

from inventory.counters import Counters
from inventory.draft import Returned, Saved
from inventory.strategies.advisory_lock import AdvisoryLock
from inventory.strategies.base import Strategy
from inventory.strategies.guarded_update import GuardedUpdate
from inventory.strategies.locks import lock_strategies, stock_lock
from inventory.strategies.lua import Lua
from inventory.strategies.optimistic import Optimistic
from inventory.strategies.row_lock import RowLock
from inventory.strategies.unit_rows import UnitRows

__all__ = ["NAMES", "Strategy", "counters", "get", "given_back", "refresh", "stock_lock", "unload"]


def get(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        KeyError: there is no such strategy; `NAMES` lists them.
    """
    return _strategies()[name]


def given_back(returned: Sequence[Returned], saved: Saved) -> None:
    """Tell every strategy of orders that ended: whose sale sells a sku now need not be whose order it was."""
    for strategy in _strategies().values():
        strategy.given_back(returned, saved)


def refresh(skus: Sequence[str], saved: Saved) -> None:
    """Tell every strategy that what is on hand has changed: somebody delivered or corrected."""
    for strategy in _strategies().values():
        strategy.refresh(skus, saved)


def unload(skus: Sequence[str]) -> None:
    """Remove whatever copies any strategy has made of the skus: none of them is on sale now."""
    for strategy in _strategies().values():
        strategy.unload(skus)


def counters() -> Counters:
    """The stock in the shop's Redis."""
    return Counters(get_redis_connection("default"))


@cache
def _strategies() -> Mapping[str, Strategy]:
    strategies: list[Strategy] = [
        AdvisoryLock(),
        GuardedUpdate(),
        Lua(counters),
        Optimistic(),
        RowLock(),
        UnitRows(),
        *lock_strategies(),
    ]
    return {strategy.name: strategy for strategy in strategies}


NAMES = tuple(sorted(_strategies()))
"""What a sale may choose: every strategy whose servers the settings name."""
