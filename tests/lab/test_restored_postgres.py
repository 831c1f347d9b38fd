"""Sales in which Redis offers too few units, as after a restore of Postgres: no customer is refused wrongly."""

from __future__ import annotations

import pytest

from inventory import stock
from inventory.counters.whole import counter_key
from inventory.errors import SoldOut
from inventory.requests import Save, Saved
from inventory.strategies import registry
from inventory.strategies.base import Strategy, none_saved
from inventory.strategies.lua import Lua, verify_sold_out
from inventory.strategies.lua_queue import LuaQueue
from lab.explorer.search import Bounds, Found, explore
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads.base import NAMES
from lab.workloads.registry import faults_of, sale
from lab.workloads.sellers import SKU, QueueSeller, StrategySeller
from lab.workloads.stock import Demand, QueueWorkload
from tests.lab.schedule_support import broken_by

pytestmark = pytest.mark.slow


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
