"""`redis-lock`: the lock is released after the commit. A busy lock is not "sold out". A fence stops a late holder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from redis import Redis

from inventory import stock
from inventory.errors import StockBusy
from inventory.models import StockItem
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies import locked, registry
from inventory.strategies.base import Strategy
from inventory.strategies.locked import Locked
from inventory.strategies.locks import stock_lock
from locking import Lease, RedisLock
from tests.factories import elsewhere, new_request, nobody
from tests.inventory.conftest import Ledger, PausedAfterGrant, after
from tests.inventory.segments_support import make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy() -> Strategy:
    return registry.get("redis-lock")


def is_free(*of: Any) -> bool:
    lease = stock_lock(*of).acquire(blocking=False)
    return lease is not None and lease.release()


@pytest.mark.parametrize("segmented", [False, True])
def test_the_lock_is_held_until_the_commit(strategy: Strategy, ledger: Ledger, segmented: bool) -> None:
    strategy, lock = (make("segmented-lock"), ("a", 0)) if segmented else (strategy, ("a",))
    stock.deliver("a", 1)
    strategy.preheat(["a"], nobody)
    seen: list[tuple[bool, int]] = []

    def look() -> None:
        seen.append((is_free(*lock), len(ledger.orders())))

    def look_twice() -> None:
        elsewhere(look)
        transaction.on_commit(partial(elsewhere, look))

    strategy.place(new_request(("a", 1)), after(look_twice, ledger.save))
    look()
    assert seen == [(False, 0), (False, 1), (True, 1)]


def test_unlocked_first_it_is_free_before_the_commit(ledger: Ledger) -> None:
    """Negative control of the test above: a lock that is taken inside the transaction is free before the commit."""

    class UnlocksFirst(Strategy):
        name = "unlocks-first"

        def _place(self, order: OrderRequest, save: Save) -> Placement:
            with transaction.atomic(durable=True):
                with stock_lock("a").hold():
                    stock.take("a", 1)
                    save_one(order, save)
                seen.append((elsewhere(lambda: is_free("a")), elsewhere(ledger.orders)))
            return Placement.COMMITTED

    seen: list[tuple[bool, list[UUID]]] = []
    stock.deliver("a", 1)
    UnlocksFirst().place(new_request(("a", 1)), ledger.save)
    assert seen == [(True, [])]


@pytest.mark.parametrize("left", [1, 0])
def test_a_held_lock_is_busy(ledger: Ledger, left: int) -> None:
    """An order that waits too long for a lock is busy, even if nothing is left. It releases its other locks."""
    stock.deliver("a", 1)
    stock.deliver("b", 1)
    if not left:
        registry.get("guarded-update").place(new_request(("b", 1)), ledger.save)
    with stock_lock("b").hold(), pytest.raises(StockBusy, match="stock:b"):
        Locked("impatient", stock_lock, wait=0.01).place(new_request(("a", 1), ("b", 1)), ledger.save)
    assert is_free("a")
    ledger.assert_law(a=(1, 0), b=(left, 1 - left))


@pytest.mark.parametrize("fenced", [True, False])
def test_an_overtaken_holder_changes_nothing(
    strategy: Strategy, ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """A holder writes nothing once another order had its lock. Negative control: without the fence, it takes a unit."""
    stock.deliver("a", 2)
    buy = partial(strategy.place, new_request(("a", 1)), ledger.save)
    paused = Locked("redis-lock", lambda sku: PausedAfterGrant(redis, f"stock:{sku}", buy), wait=5)
    if fenced:
        with pytest.raises(StockBusy, match="overtaken"):
            paused.place(new_request(("a", 1)), ledger.save)
        assert StockItem.objects.get(sku="a").version == 1
    else:
        unfenced = lambda item, lease, kind: stock.take(item.sku, item.quantity)  # noqa: E731
        monkeypatch.setattr(locked, "check_and_decrement", unfenced)
        paused.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 1) if fenced else (0, 2))


def test_a_fence_equal_to_the_last_is_overtaken(ledger: Ledger, redis: Redis) -> None:
    class WrittenMeanwhile(RedisLock):
        @contextmanager
        def hold(self, timeout: float | None = None) -> Iterator[Lease]:
            with super().hold(timeout) as lease:
                StockItem.objects.update(fence=lease.fence, fenced_by="redis-lock")
                yield lease

    stock.deliver("a", 1)
    with pytest.raises(StockBusy, match="overtaken"):
        Locked("redis-lock", lambda sku: WrittenMeanwhile(redis, sku), wait=1).place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 0))
