"""Helpers of the tests of the two segmented strategies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from redis import Redis

from inventory.errors import Refusal, SoldOut
from inventory.requests import OrderRequest, Placement
from inventory.strategies import registry
from inventory.strategies.locks import stock_lock
from inventory.strategies.segmented import Segmented
from inventory.strategies.segmented_lock import SegmentedLock
from inventory.strategies.segmented_redis import SegmentedRedis
from locking import RedisLock, held
from tests.factories import at_once, new_request
from tests.inventory.conftest import Ledger, put_on_sale
from tests.waiting import WAIT_TIMEOUT, wait_for

CLASSES: dict[str, Any] = {"segmented-lock": SegmentedLock, "segmented-redis": SegmentedRedis}


def make(name: str, base: type[Segmented] | None = None, *, units: int = 0, **options: Any) -> Segmented:
    """Return a new strategy with empty caches, as in another process. It sells `units` of the sku `a`.

    An item is taken from the first segment that has enough units.
    """
    options = {"wait": WAIT_TIMEOUT, "segments": 5, "start": lambda sku, segments: 0} | options
    arguments = [options.pop("make_lock", stock_lock)]
    if name == "segmented-redis":
        arguments.insert(0, registry.segment_counters)
    made: Segmented = (base or CLASSES[name])(*arguments, **options)
    if units:
        put_on_sale(made, a=units)
    return made


def buy(strategy: Segmented, ledger: Ledger, *cart: tuple[str, int]) -> Placement:
    return strategy.place(new_request(*cart), ledger.save)


def units_of(strategy: Segmented, sku: str = "a") -> list[int]:
    """Return the units in each segment, ordered by segment number."""
    return [units for _, units in sorted(strategy.segment_units(sku).items())]


class Locks:
    """Makes the shop's locks of segments. It calls `before` with each request and keeps a list of the requests."""

    def __init__(self, before: Callable[[str, int], object] = lambda sku, number: None) -> None:
        self.asked: list[tuple[str, int]] = []
        self.before = before

    def __call__(self, sku: str, number: int) -> RedisLock:
        self.before(sku, number)
        self.asked.append((sku, number))
        return stock_lock(sku, number)


def second_order_of_the_last_unit(strategy: Segmented, ledger: Ledger, redis: Redis) -> Any:
    """Return the answer to an order for the last unit. An earlier order for the same unit is being saved, and fails."""
    put_on_sale(strategy, a=1)
    comes, answers = threading.Event(), []

    def second() -> None:
        comes.wait(WAIT_TIMEOUT)
        strategy.forget("a")  # Simulate another process, which has cached nothing yet.
        try:
            answers.append(buy(strategy, ledger, ("a", 1)))
        except SoldOut as refused:
            answers.append(refused)

    def fail(orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        comes.set()
        wait_for(lambda: answers or sum(lock.waiters for lock in held(redis)), "the second order")
        raise KeyError

    def first() -> None:
        with pytest.raises(KeyError):
            strategy.place(new_request(("a", 1)), fail)

    at_once(first, second)
    return answers[0]
