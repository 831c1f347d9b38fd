"""The strategies that a sale may choose, loaded by name when they are first used.

Strategies that are flawed on purpose are not here. Only the lab has them, so that no sale can choose a flawed strategy.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from django.conf import settings
from django.db.models.functions import Collate
from django_redis import get_redis_connection
from redis import RedisError

from inventory import sold_out
from inventory.errors import StockUnavailable, UnknownStrategy
from inventory.models import StockItem
from inventory.queue.signals import worker_needed
from inventory.requests import OrderRequest, QueuedOrder, Reject, ReturnedUnits, Save, Saved

if TYPE_CHECKING:
    from inventory.counters.segmented import SegmentCounters
    from inventory.counters.whole import Counters, Reservation
    from inventory.queue.stream import Queue
    from inventory.strategies.base import Strategy
    from inventory.strategies.lua_queue import LuaQueue

__all__ = [
    "NAMES",
    "counters",
    "end_lost_order",
    "free_key",
    "get",
    "merge_splits_of_others",
    "preheat",
    "queue",
    "queued_order",
    "redis_stock",
    "refresh",
    "risks",
    "sales_with_queued_orders",
    "segment_counters",
    "split_by_others",
    "units_returned",
    "unload",
    "work",
    "worker_needed",
]

logger = logging.getLogger(__name__)


class StrategyEntry(NamedTuple):
    """How to make a strategy.

    Args:
        factory: "module:callable".
        arguments: returns the arguments of the factory.
        server: name of the setting with the address of the server that the strategy needs. While the setting is empty,
            no sale can choose the strategy.
        session: whether its locks hold Postgres sessions of their own. If so, no sale can choose the strategy behind a
            pooler.
    """

    factory: str
    arguments: Callable[[], Mapping[str, Any]] = dict
    server: str = ""
    session: bool = False


def counters() -> Counters:
    """Return the stock counters in the shop's Redis."""
    from inventory.counters.whole import Counters

    return Counters(get_redis_connection("default"))


def segment_counters() -> SegmentCounters:
    """Return the segmented stock counters in the shop's Redis."""
    from inventory.counters.segmented import SegmentCounters

    return SegmentCounters(get_redis_connection("default"))


def queue() -> Queue:
    """Return the queue of accepted orders in the shop's Redis."""
    from inventory.queue.stream import Queue

    return Queue(get_redis_connection("default"))


def _lock(name: str, *, server: str = "", session: bool = False) -> StrategyEntry:
    return StrategyEntry("inventory.strategies.locks:lock_strategy", lambda: {"name": name}, server, session)


def _segments() -> Mapping[str, Any]:
    from inventory.strategies.locks import stock_lock

    return {"make_lock": stock_lock, "wait": settings.STOCK_LOCK_WAIT, "segments": settings.STOCK_SEGMENTS}


DEFAULT = "group-commit"
"""The strategy of a new sale. It needs only Postgres, and costs the least per order."""

STRATEGIES: Mapping[str, StrategyEntry] = {
    "advisory-lock": StrategyEntry("inventory.strategies.advisory_lock:AdvisoryLockStrategy"),
    "etcd-lock": _lock("etcd-lock", server="ETCD_URL"),
    "file-lock": _lock("file-lock", server="LOCK_FOLDER"),
    "group-commit": StrategyEntry("inventory.strategies.group_commit:GroupCommit"),
    "guarded-update": StrategyEntry("inventory.strategies.guarded_update:GuardedUpdate"),
    "insert-lock": _lock("insert-lock", session=True),
    "lock-table": _lock("lock-table", session=True),
    "lua": StrategyEntry("inventory.strategies.lua:Lua", lambda: {"counters": counters}),
    "lua-queue": StrategyEntry(
        "inventory.strategies.lua_queue:LuaQueue", lambda: {"counters": counters, "queue": queue}
    ),
    "optimistic": StrategyEntry("inventory.strategies.optimistic:Optimistic"),
    "redis-lock": _lock("redis-lock"),
    "redlock": _lock("redlock", server="REDLOCK_URLS"),
    "row-lock": StrategyEntry("inventory.strategies.row_lock:RowLockStrategy"),
    "segmented-lock": StrategyEntry("inventory.strategies.segmented_lock:SegmentedLock", _segments),
    "segmented-redis": StrategyEntry(
        "inventory.strategies.segmented_redis:SegmentedRedis", lambda: {"counters": segment_counters, **_segments()}
    ),
    "session-lock": _lock("session-lock", session=True),
    "unit-rows": StrategyEntry("inventory.strategies.unit_rows:UnitRows"),
    "zookeeper-lock": _lock("zookeeper-lock", server="ZOOKEEPER_HOSTS"),
}

COPYING = ("lua", "lua-queue", "segmented-redis", "segmented-lock", "unit-rows")
"""The strategies that sell from a copy of the stock, or split the stock. They must learn when the stock changes."""


def known_names() -> tuple[str, ...]:
    """Return the sorted names of the strategies that can be used with the servers in the settings."""
    return tuple(
        name
        for name, entry in STRATEGIES.items()
        if (not entry.server or getattr(settings, entry.server)) and not (entry.session and settings.DATABASE_POOLER)
    )


NAMES = known_names()
"""The names of the strategies that a sale may choose."""

_loaded: dict[str, Strategy] = {}


def get(name: str) -> Strategy:
    """Return the strategy of that name, always the same object.

    Raises:
        UnknownStrategy: the name is not in `NAMES`.
    """
    if name not in _loaded:
        if name not in NAMES:
            raise UnknownStrategy(name, NAMES)
        entry = STRATEGIES[name]
        module, _, factory = entry.factory.partition(":")
        # With setdefault, two threads that load a strategy at the same time get the same object.
        _loaded.setdefault(name, getattr(import_module(module), factory)(**entry.arguments()))
    return _loaded[name]


def _copying() -> Iterator[Strategy]:
    return map(get, COPYING)


def preheat(name: str, skus: Sequence[str], saved: Saved) -> None:
    """Create or correct the copies of the stock from which a strategy sells the skus, in the open transaction.

    The skus are locked one after the other in sorted order, which prevents deadlocks.

    Raises:
        RedisError: Redis did not answer, and the strategy needs it.
    """
    for sku in sorted(skus):
        merge_splits_of_others({sku: name})
        get(name).preheat([sku], saved)


def unload(skus: Sequence[str], sellers: Collection[str] = COPYING) -> None:
    """Remove the copies of the stock of skus that are no longer on sale.

    Args:
        sellers: names of the strategies that have sold the skus. Only their copies are removed. So a sale that needs
            only Postgres can begin and end while Redis is away. Reconciliation removes other copies.
    """
    for name in COPYING:
        if name in sellers:
            get(name).unload(skus)


def refresh(skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
    """Correct all copies of the stock after a delivery or a correction.

    Returns:
        Units by which the copy of each sku was wrong.

    Raises:
        RedisError: Redis did not answer.
    """
    sold_out.forget()
    changes: dict[str, int] = {}
    for strategy in _copying():
        changes.update(strategy.refresh(skus, saved))
    return changes


def units_returned(returned: Sequence[ReturnedUnits], saved: Saved) -> None:
    """Correct all copies of the stock after orders ended. The strategy of a sku may have changed since the order."""
    sold_out.forget()
    try:
        for strategy in _copying():
            strategy.units_returned(returned, saved)
    except RedisError:
        logger.warning(
            "Redis did not answer: its counters stay wrong until reconciliation. Units returned: %s", returned
        )


def split_by_others(sellers: Mapping[str, str]) -> dict[str, str]:
    """Return the skus whose stock is split by a strategy that does not sell them now, with that strategy's name.

    Args:
        sellers: the name of the strategy that sells each sku.
    """
    split = StockItem.objects.filter(sku__in=sellers).exclude(split_by="").values_list("sku", "split_by")
    return {sku: by for sku, by in split.order_by(Collate("sku", "C")) if by != sellers[sku]}


def merge_splits_of_others(sellers: Mapping[str, str]) -> list[str]:
    """Merge the stock of skus that is split by a strategy that does not sell them now.

    Args:
        sellers: the name of the strategy that sells each sku.

    Returns:
        The skus whose stock was merged.
    """
    split = split_by_others(sellers)
    for sku, by in split.items():
        get(by).unload([sku])
    return list(split)


def redis_stock(skus: Sequence[str]) -> Mapping[str, tuple[int, int]]:
    """Return (units in the counters, units reserved) of each sku. Skus without a counter in Redis are missing.

    Raises:
        RedisError: Redis did not answer.
    """
    left, reserved = counters().left(skus), counters().reserved()
    found = {sku: (units, reserved.get(sku, 0)) for sku, units in left.items() if units is not None}
    return {**found, **segment_counters().totals(skus)}


def sales_with_queued_orders(skus: Collection[str]) -> set[int]:
    """Return the sales that have orders for any of these skus on the queue.

    Raises:
        RedisError: Redis did not answer.
    """
    return queue().sales_of(counters().reservations(), skus)


def risks(name: str) -> list[str]:
    """Return the reasons why queued orders of a strategy may be lost. Empty if it queues none, or Redis is safe.

    Raises:
        RedisError: Redis did not answer.
    """
    return queue().risks() if get(name).queues else []


def queued_order(order_id: UUID) -> QueuedOrder | None:
    """Return what Redis knows of an order that was queued and is not saved; None if Redis does not know the order.

    Raises:
        StockUnavailable: Redis did not answer.
    """
    try:
        return queue().find(order_id)
    except RedisError as error:
        raise StockUnavailable(f"Redis did not answer: {error}") from error


def free_key(order: OrderRequest, lost: UUID) -> bool:
    """Free the idempotency key of an order that was queued and saved, but is missing in Postgres now.

    Returns whether the key was freed, see `Queue.free_key`.

    Raises:
        StockUnavailable: Redis did not answer.
    """
    try:
        return queue().free_key(order, lost)
    except RedisError as error:
        raise StockUnavailable(f"Redis did not answer: {error}") from error


def work(save: Save, reject: Reject, saved: Saved, *, shift: float = math.inf) -> int:
    """Save queued orders. See `LuaQueue.work`."""
    return cast("LuaQueue", get("lua-queue")).work(save, reject, saved, shift=shift)


def end_lost_order(reservation: Reservation, reject: Reject) -> bool:
    """Reject an order that has a reservation but no entry on the queue. See `LuaQueue.end_lost` for the result."""
    return cast("LuaQueue", get("lua-queue")).end_lost(reservation, reject)
