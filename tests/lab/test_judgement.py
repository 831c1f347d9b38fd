"""`--verify` finds planted flaws of sound rungs (correct locks and sales): it also checks the clients' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from inventory import bulk
from inventory.counters.whole import Counters
from inventory.errors import SoldOut, StockBusy
from inventory.queue.entries import QueueEntry
from inventory.requests import OrderRequest, Placement, RequestItem, Save
from inventory.strategies import unit_rows
from inventory.strategies.base import Strategy
from inventory.strategies.lua_queue import LuaQueue
from inventory.strategies.row_lock import RowLockStrategy
from inventory.strategies.segmented_lock import SegmentedLock
from lab.claims import verify
from lab.explorer import search
from lab.explorer.actor import current_actor
from lab.explorer.search import Bounds
from lab.sandbox.sandbox import Sandbox
from lab.workloads import sellers
from locking import LockUnavailable, RedisLock
from tests.lab.schedule_support import SellsNothing, mutate_script

pytestmark = pytest.mark.slow


def assert_found(slug: str, sandbox: Sandbox, why: str) -> None:
    line = verify.check(slug, sandbox)
    assert line["verdict"] == "broken"
    assert why in line["why"]


class AlwaysBusy(RowLockStrategy):
    def _place(self, order: OrderRequest, save: Save) -> Placement:
        raise StockBusy("Ask again.")


class Fails(RowLockStrategy):
    def _place(self, order: OrderRequest, save: Save) -> Placement:
        raise ValueError("a fault of the strategy")


class DropsOrders(LuaQueue):
    """A strategy whose worker removes requests from the queue without saving them."""

    def _save(self, entries: Sequence[QueueEntry], *rest: Any) -> None:
        self.queue().finish_saved(entries)


class KnowsOneSegment(SegmentedLock):
    def segment_units(self, sku: str) -> dict[int, int]:
        return {0: super().segment_units(sku)[0]}

    def units_left(self, sku: str) -> int:
        return self.segment_units(sku)[0]


@pytest.mark.parametrize(
    ("slug", "flawed", "why"),
    [
        ("guarded-update", SellsNothing, 'got the answer "sold", but has no order'),
        ("row-lock", AlwaysBusy, "is refused (StockBusy)"),
        ("row-lock", Fails, "met an error that no client should see: ValueError: a fault of the strategy"),
        ("segmented-lock", KnowsOneSegment, "was refused as sold out. Units left: 1."),
        ("lua-queue", DropsOrders, 'got the answer "queued", but has no order'),
    ],
)
def test_a_wrong_answer_is_found(
    sandbox: Sandbox, slug: str, flawed: type[Strategy], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = sellers.STRATEGIES[slug]

    def make_flawed() -> Strategy:
        strategy = make()
        strategy.__class__ = flawed
        return strategy

    monkeypatch.setitem(sellers.STRATEGIES, slug, make_flawed)
    assert_found(slug, sandbox, why)


def test_a_reservation_that_never_ends_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counters, "give_back", lambda self, *rest: False)
    assert_found("lua", sandbox, "is refused (StockReserved)")


def test_a_group_that_is_not_saved_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    original = bulk.commit

    def commit(requests: Sequence[OrderRequest], save: Save, **options: Any) -> Mapping[Any, Any]:
        return original(requests, save, **options) if len(requests) == 1 else {}

    monkeypatch.setattr(bulk, "commit", commit)
    assert_found("group-commit", sandbox, 'got the answer "sold", but has no order')


def test_sold_out_while_another_buyer_may_fail_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    original = unit_rows.take_unlocked

    def take_unlocked(item: RequestItem) -> None:
        try:
            original(item)
        except unit_rows.TooFewUnlocked:
            raise SoldOut(item.sku, wanted=item.quantity, left=0) from None

    monkeypatch.setattr(unit_rows, "take_unlocked", take_unlocked)
    assert_found("unit-rows", sandbox, "was refused as sold out. Units left: 1.")


@pytest.mark.parametrize("slug", ["renewal", "woken"])
def test_a_lock_that_is_never_granted_is_found(sandbox: Sandbox, slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = RedisLock.acquire

    def refuse(*arguments: Any, **options: Any) -> Any:
        if current_actor():
            raise LockUnavailable("Try again.")
        return original(*arguments, **options)  # After the run, the workload itself takes the lock.

    monkeypatch.setattr(RedisLock, "acquire", refuse)
    assert_found(slug, sandbox, "could have bought a unit but got none")


def test_a_release_without_the_owner_check_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with three clients finds a release without the owner check.

    A late release of the first client frees the second one's lock for the third.
    """
    mutate_script("release", "if redis.call('GET', KEYS[1]) ~= ARGV[1] then", "if false then", sandbox, monkeypatch)
    assert_found("renewal", sandbox, "are inside at the same time")


def test_an_incomplete_search_does_not_reproduce_a_claim(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SOUND", Bounds(preemptions=1, faults=1))
    monkeypatch.setitem(verify.CROWDED, "stock", Bounds(preemptions=0, faults=0))
    original, times = search._walk, count()

    def diverge_once(*arguments: Any) -> Any:
        if next(times) == 3:
            raise search.Diverged
        return original(*arguments)

    assert verify.reproduced(verify.check("lua-queue", sandbox))
    monkeypatch.setattr(search, "_walk", diverge_once)
    line = verify.check("lua-queue", sandbox)
    assert (line["verdict"], line["exhausted"]) == ("held", False)
    assert not verify.reproduced(line)
