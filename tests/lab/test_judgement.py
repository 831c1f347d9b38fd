"""`--verify` finds planted flaws of sound rungs (correct locks and sales): it also checks the clients' answers.

If Redis offers too few units, as after a restore of Postgres, no customer is refused wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from inventory import bulk, stock
from inventory.counters.whole import Counters, counter_key
from inventory.errors import SoldOut, StockBusy
from inventory.queue.entries import QueueEntry
from inventory.requests import OrderRequest, Placement, RequestItem, Save, Saved
from inventory.strategies import registry, unit_rows
from inventory.strategies.base import Strategy, none_saved
from inventory.strategies.lua import Lua, verify_sold_out
from inventory.strategies.lua_queue import LuaQueue
from inventory.strategies.row_lock import RowLockStrategy
from inventory.strategies.segmented_lock import SegmentedLock
from lab.claims import verify
from lab.explorer import search
from lab.explorer.actor import current_actor
from lab.explorer.search import Bounds, Found, explore
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads import sellers
from lab.workloads.base import NAMES
from lab.workloads.registry import faults_of, sale
from lab.workloads.sellers import SKU, QueueSeller, StrategySeller
from lab.workloads.stock import Demand, QueueWorkload
from locking import LockUnavailable, RedisLock
from tests.lab.schedule_support import SellsNothing, broken_by, mutate_script

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
    """A late release of the first client frees the second one's lock for the third."""
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


class CountsTooFew(StrategySeller):
    """A sale in which Redis offers one unit too few."""

    def open(self) -> tuple[Strategy, Save]:
        opened = super().open()
        registry.counters().client.decr(counter_key(SKU))
        return opened


class CountsTooFewQueued(CountsTooFew, QueueSeller):
    """A sale with queued orders in which Redis offers one unit too few."""


DEMAND = Demand(2, (1, 1, 1))
SEARCHES = {
    "lua": (sale(DEMAND, seller=CountsTooFew), Bounds(preemptions=0, faults=1)),
    "lua-queue": (
        sale(DEMAND, seller=CountsTooFewQueued, workload=QueueWorkload),
        Bounds(preemptions=1, faults=0),
    ),
}


def searched(slug: str, sandbox: Sandbox) -> Found:
    """Search the schedules of two customers who buy one unit each. Two units are on hand, and Redis offers one."""
    build, bounds = SEARCHES[slug]
    return explore(build(LADDER[slug], sandbox, NAMES[:2]), bounds, faults_of(LADDER[slug]), None)


@pytest.mark.parametrize("slug", SEARCHES)
def test_a_unit_that_redis_does_not_count_is_not_sold_out(sandbox: Sandbox, slug: str) -> None:
    found = searched(slug, sandbox)
    assert (broken_by(found), found.exhausted) == (None, True)


def count_again(self: Lua, refused: SoldOut, saved: Saved) -> None:
    """Flaw: read the counter again after the refusal, although it may have been corrected since."""
    left = self.counters().left([refused.sku])[refused.sku] or 0
    verify_sold_out(refused.sku, left + self.counters().reserved().get(refused.sku, 0))


def none_saved_yet(self: LuaQueue, refused: SoldOut, saved: Saved) -> None:
    """Flaw: count a saved order's units as reserved until its worker has ended the reservation."""
    ORIGINAL(self, refused, none_saved)


def ask_redis_first(self: LuaQueue, sku: str, saved: Saved) -> int:
    """Flaw: read Redis first, and miss the orders that a worker saves before the read of Postgres."""
    reserved, being_saved = self.queue().being_saved(sku)
    units_saved = sum(being_saved[order_id] for order_id in saved(being_saved))
    return stock.on_hand(sku) - reserved + units_saved


ORIGINAL = LuaQueue._verify_sold_out
FLAWS = {
    "the counter is read again": ("lua", Lua, "_verify_sold_out", count_again),
    "saved orders count as reserved": ("lua-queue", LuaQueue, "_verify_sold_out", none_saved_yet),
    "Redis is read first": ("lua-queue", LuaQueue, "_unreserved", ask_redis_first),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_it_is_sold_out_without_the_guard(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    """Negative controls: without one of the guards, the search finds a false "sold out"."""
    slug, strategy, method, instead = FLAWS[flaw]
    monkeypatch.setattr(strategy, method, instead)
    assert broken_by(searched(slug, sandbox)) == "no false refusal"
