"""The strategies that a sale may choose. What is wrong on purpose is not here: no registry outside the lab knows it."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from uuid import UUID

from django.conf import settings
from django.db.models.functions import Collate
from django_redis import get_redis_connection
from redis import RedisError

from inventory import sold_out
from inventory.counters.segmented import SegmentCounters
from inventory.counters.whole import Counters, Note
from inventory.errors import StockUnavailable, UnknownStrategy
from inventory.models import StockItem
from inventory.queue.stream import Queue
from inventory.requests import Reject, Returned, Save, Saved, Waiting
from inventory.strategies.advisory_lock import AdvisoryLockStrategy
from inventory.strategies.base import Strategy
from inventory.strategies.group_commit import GroupCommit
from inventory.strategies.guarded_update import GuardedUpdate
from inventory.strategies.locks import lock_strategies, stock_lock
from inventory.strategies.lua import Lua
from inventory.strategies.lua_queue import LuaQueue, queued
from inventory.strategies.optimistic import Optimistic
from inventory.strategies.row_lock import RowLockStrategy
from inventory.strategies.segmented_lock import SegmentedLock
from inventory.strategies.segmented_redis import SegmentedRedis
from inventory.strategies.unit_rows import UnitRows

__all__ = [
    "NAMES",
    "Strategy",
    "Waiting",
    "counters",
    "end",
    "gather",
    "get",
    "given_back",
    "in_redis",
    "misplaced",
    "preheat",
    "promised",
    "queue",
    "queued",
    "refresh",
    "segment_counters",
    "stock_lock",
    "unload",
    "waiting",
    "work",
]

logger = logging.getLogger(__name__)


def get(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        UnknownStrategy: this process knows none; `NAMES` lists those that it knows.
    """
    try:
        return _strategies()[name]
    except KeyError:
        raise UnknownStrategy(name, NAMES) from None


def given_back(returned: Sequence[Returned], saved: Saved) -> None:
    """Tell every strategy of orders that ended: whose sale sells a sku now need not be whose order it was."""
    sold_out.forget()
    try:
        for strategy in _strategies().values():
            strategy.given_back(returned, saved)
    except RedisError:
        logger.warning("Redis did not answer, so its counters are wrong until they are reconciled: %s", returned)


def refresh(skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
    """Tell every strategy that what is on hand has changed: somebody delivered or corrected.

    Returns:
        By how many units the copy of each sku was wrong.

    Raises:
        RedisError: Redis did not answer.
    """
    sold_out.forget()
    changes: dict[str, int] = {}
    for strategy in _strategies().values():
        changes.update(strategy.refresh(skus, saved))
    return changes


def preheat(name: str, skus: Sequence[str], saved: Saved) -> None:
    """Make the copies from which a strategy sells the skus, or make them right again, in the open transaction.

    One sku after the other: whoever locks the rows of several keeps to that order.

    Raises:
        RedisError: Redis did not answer, and the strategy needs it.
    """
    for sku in sorted(skus):
        gather({sku: name})
        get(name).preheat([sku], saved)


def gather(sellers: Mapping[str, str]) -> list[str]:
    """Put back where every strategy finds it what another one has split than the one that sells it now.

    Args:
        sellers: the name of the strategy that sells each sku.

    Returns:
        The skus that were split.
    """
    wrong = misplaced(sellers)
    for sku, by in wrong.items():
        get(by).unload([sku])
    return list(wrong)


def misplaced(sellers: Mapping[str, str]) -> dict[str, str]:
    """The skus that another strategy has split than the one that sells them, each with the other's name."""
    split = StockItem.objects.filter(sku__in=sellers).exclude(split_by="").values_list("sku", "split_by")
    return {sku: by for sku, by in split.order_by(Collate("sku", "C")) if by != sellers[sku]}


def unload(skus: Sequence[str]) -> None:
    """Remove whatever copies any strategy has made of the skus: none of them is on sale now."""
    for strategy in _strategies().values():
        strategy.unload(skus)


def counters() -> Counters:
    """The stock in the shop's Redis."""
    return Counters(get_redis_connection("default"))


def in_redis(skus: Sequence[str]) -> Mapping[str, tuple[int, int]]:
    """What Redis may still admit of each sku, and what is reserved; a sku of which it has no copy is left out.

    Raises:
        RedisError: Redis did not answer.
    """
    left, reserved = counters().left(skus), counters().reserved()
    found = {sku: (units, reserved.get(sku, 0)) for sku, units in left.items() if units is not None}
    return {**found, **segment_counters().sums(skus)}


def queue() -> Queue:
    """The queue of accepted orders in the shop's Redis."""
    return Queue(get_redis_connection("default"))


def promised(skus: Collection[str]) -> set[int]:
    """The sales that have orders for these skus in the queue.

    Raises:
        RedisError: Redis did not answer.
    """
    return queue().sales_of(counters().notes(), skus)


def work(save: Save, reject: Reject, saved: Saved, *, shift: float = math.inf) -> int:
    """Save the orders that are queued. See `LuaQueue.work`."""
    return _lua_queue().work(save, reject, saved, shift=shift)


def end(note: Note, reject: Reject) -> bool:
    """End a request that the queue has lost. See `LuaQueue.end`."""
    return _lua_queue().end(note, reject)


def _lua_queue() -> LuaQueue:
    strategy = _strategies()["lua-queue"]
    assert isinstance(strategy, LuaQueue)  # noqa: S101 - for the type checker
    return strategy


def waiting(request: UUID) -> Waiting | None:
    """What is known of a request that was queued and is no order yet.

    Raises:
        StockUnavailable: Redis did not answer.
    """
    try:
        return queue().get(request)
    except RedisError as error:
        raise StockUnavailable(f"Redis did not answer: {error}") from error


def segment_counters() -> SegmentCounters:
    """The stock in segments in the shop's Redis."""
    return SegmentCounters(get_redis_connection("default"))


@cache
def _strategies() -> Mapping[str, Strategy]:
    strategies: list[Strategy] = [
        AdvisoryLockStrategy(),
        GroupCommit(),
        GuardedUpdate(),
        Lua(counters),
        LuaQueue(counters, queue),
        Optimistic(),
        RowLockStrategy(),
        SegmentedRedis(segment_counters, stock_lock, wait=settings.STOCK_LOCK_WAIT, segments=settings.STOCK_SEGMENTS),
        SegmentedLock(stock_lock, wait=settings.STOCK_LOCK_WAIT, segments=settings.STOCK_SEGMENTS),
        UnitRows(),
        *lock_strategies(),
    ]
    return {strategy.name: strategy for strategy in strategies}


NAMES = tuple(sorted(_strategies()))
"""What a sale may choose: every strategy whose servers the settings name."""
