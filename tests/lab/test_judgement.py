"""What a sound rung answers is judged, too: a flaw in each of them is found within the bounds of `--verify`."""

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
from inventory.strategies.guarded_update import GuardedUpdate
from inventory.strategies.lua_queue import LuaQueue
from inventory.strategies.row_lock import RowLockStrategy
from inventory.strategies.segmented_lock import SegmentedLock
from lab.claims import verify
from lab.explorer import search
from lab.explorer.search import Bounds
from lab.sandbox.sandbox import Sandbox
from lab.workloads import sellers
from locking import LockUnavailable, RedisLock
from tests.lab.schedule_support import mutant, sandbox

__all__ = ["sandbox"]

pytestmark = pytest.mark.slow


class SaysSold(GuardedUpdate):
    """It says so, and sells nothing."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        return Placement.COMMITTED


class AlwaysBusy(RowLockStrategy):
    """It refuses everybody."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        raise StockBusy("Ask again.")


class Drops(LuaQueue):
    """Its worker takes requests off the queue, and does not save them."""

    def _save(self, entries: Sequence[QueueEntry], *rest: Any) -> None:
        self.queue().finish_saved(entries)


class KnowsOneSegment(SegmentedLock):
    """It never looks at the others."""

    def look(self, sku: str) -> dict[int, int]:
        return {0: super().look(sku)[0]}

    def left(self, sku: str) -> int:
        return self.look(sku)[0]


@pytest.mark.parametrize(
    ("slug", "flawed", "breaks"),
    [
        ("guarded-update", SaysSold, "was told sold, and has no order"),
        ("row-lock", AlwaysBusy, "is refused (StockBusy)"),
        ("segmented-lock", KnowsOneSegment, "was told sold out, and 1 are left"),
        ("lua-queue", Drops, "was told queued, and has no order"),
    ],
)
def test_who_answers_what_is_not_so_is_found(
    sandbox: Sandbox, slug: str, flawed: type[Strategy], breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sellers.STRATEGIES[slug]
    monkeypatch.setitem(sellers.STRATEGIES, slug, lambda: become(plain(), flawed))
    assert_found(slug, sandbox, breaks)


def test_a_reservation_that_never_ends_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes later is told for ever that somebody may still want the units."""
    monkeypatch.setattr(Counters, "give_back", lambda self, *rest: False)
    assert_found("lua", sandbox, "is refused (StockReserved)")


def test_a_group_that_is_answered_and_not_saved_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bulk.commit

    def alone(requests: Sequence[OrderRequest], save: Save) -> Mapping[Any, Any]:
        return plain(requests, save) if len(requests) == 1 else {}

    monkeypatch.setattr(bulk, "commit", alone)
    assert_found("group-commit", sandbox, "was told sold, and has no order")


def test_a_refusal_because_somebody_holds_what_he_never_pays_for_is_found(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = unit_rows.take_unlocked

    def only_look(item: RequestItem) -> None:
        try:
            plain(item)
        except unit_rows.TooFewUnlocked:
            raise SoldOut(item.sku, wanted=item.quantity, left=0) from None

    monkeypatch.setattr(unit_rows, "take_unlocked", only_look)
    assert_found("unit-rows", sandbox, "was told sold out, and 1 are left")


@pytest.mark.parametrize("slug", ["renewal", "woken"])
def test_a_lock_that_nobody_is_ever_granted_is_found(
    sandbox: Sandbox, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise LockUnavailable("Try again.")

    monkeypatch.setattr(RedisLock, "acquire", refuse)
    assert_found(slug, sandbox, "could have bought, and got nothing")


def test_a_release_without_its_owner_check_is_found_by_verify(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a third client: one is late with his release, one holds the lock by now, one gets it too early."""
    mutant("release", "if redis.call('GET', KEYS[1]) ~= ARGV[1] then", "if false then", sandbox, monkeypatch)
    assert_found("renewal", sandbox, "are inside at the same time")


def test_a_sound_rung_of_which_not_all_schedules_were_tried_is_not_reproduced(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "SOUND", Bounds(preemptions=1, faults=1))
    monkeypatch.setitem(verify.CROWDED, "stock", Bounds(preemptions=0, faults=0))
    plain, times = search._walk, count()

    def diverges_once(*arguments: Any) -> Any:
        if next(times) == 3:
            raise search.Diverged
        return plain(*arguments)

    assert verify.reproduced(verify.check("lua-queue", sandbox))
    monkeypatch.setattr(search, "_walk", diverges_once)
    said = verify.check("lua-queue", sandbox)
    assert (said["verdict"], said["exhausted"]) == ("held", False)
    assert not verify.reproduced(said)


def become(strategy: Strategy, flawed: type[Strategy]) -> Strategy:
    strategy.__class__ = flawed
    return strategy


def assert_found(slug: str, sandbox: Sandbox, why: str) -> None:
    said = verify.check(slug, sandbox)
    assert said["verdict"] == "broken"
    assert why in said["why"]
