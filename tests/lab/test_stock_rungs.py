"""Each flawed way of selling breaks what it says, by a fixed schedule, and what fixes it survives the same schedule.

The servers, statements, commands and crashes are real. Nothing is left to chance: a buyer comes when another is about
to take a step, and goes as far as he can.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, get_args

import pytest
import redis as redis_py
from redis import Redis

from inventory.audit import Figures
from inventory.errors import OverLimit, StockBusy, StockUnavailable
from inventory.models import StockItem
from inventory.requests import Placement
from inventory.strategies.registry import NAMES
from lab import ledger
from lab.ladder.stock import RUNGS
from lab.ladder.stock.rung import Trigger
from lab.ladder.stock.segmented_keys import SegmentedKeys
from locking import ThreadLock
from shop.models import Order
from tests.factories import new_request
from tests.lab import stock_support as world_of
from tests.lab.stock_support import (
    RungTill,
    Schedule,
    comes_before,
    dies,
    each_step,
    killed,
    seller,
    stepped,
    ttl_passes,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

SCHEDULES: list[tuple[str, Schedule]] = [
    ("compute-and-overwrite", world_of.another_writes_first),
    ("subtract-in-sql", world_of.another_takes_the_last_unit_first),
    ("lock-inside-the-transaction", world_of.another_comes_before_the_commit),
    ("lock-under-the-wrong-isolation", world_of.another_buys_before_the_lock),
    ("refusal-swallowed", world_of.another_comes_after_the_last_unit),
    ("order-after-the-unlock", world_of.one_dies),
    ("exception-leaves-the-lock", world_of.another_comes_after_a_refusal),
    ("segmented-keys", world_of.two_want_one_each),
    ("segmented-keys", world_of.one_wants_two),
    ("retries-reported-as-sold-out", world_of.another_is_faster_each_time),
    ("lua-off-by-one", world_of.another_comes_after_the_last_unit),
    ("decr-and-look-at-the-sign", world_of.two_are_wanted_then_one),
    ("redis-taken-then-the-process-dies", world_of.one_dies),
    ("queue-after-decrement-as-two-calls", world_of.one_dies),
    ("redis-loses-its-last-second", world_of.redis_forgets),
    ("duplicate-click", world_of.the_same_request_comes_twice),
]
EACH = pytest.mark.parametrize(
    ("slug", "schedule"), SCHEDULES, ids=[f"{slug}: {schedule.__name__}" for slug, schedule in SCHEDULES]
)


@pytest.fixture(autouse=True)
def _steps(redis: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every command is a step; a lock is waited for until it comes; all are sent to one segment."""
    settings.STOCK_LOCK_WAIT = PATIENCE
    monkeypatch.setattr(SegmentedKeys, "pick", lambda self: 0)
    with stepped(redis):
        yield


@EACH
def test_the_schedule_breaks_what_the_rung_says(redis: Redis, slug: str, schedule: Schedule) -> None:
    assert schedule(seller(slug), redis) == RUNGS[slug].breaks


@EACH
def test_what_fixes_it_survives_the_same_schedule(redis: Redis, slug: str, schedule: Schedule) -> None:
    fix = RUNGS[slug].fixed_by
    assert fix is not None
    assert schedule(seller(fix), redis) is None


# What the rungs say of themselves


LADDER = [
    "compute-and-overwrite",
    "subtract-in-sql",
    "lock-inside-the-transaction",
    "lock-under-the-wrong-isolation",
    "refusal-swallowed",
    "order-after-the-unlock",
    "exception-leaves-the-lock",
    "segmented-keys",
    "retries-reported-as-sold-out",
    "lua-off-by-one",
    "decr-and-look-at-the-sign",
    "redis-taken-then-the-process-dies",
    "queue-after-decrement-as-two-calls",
    "redis-loses-its-last-second",
    "duplicate-click",
]


def test_the_ladder_has_every_flawed_rung_in_order_and_a_schedule_for_each() -> None:
    assert list(RUNGS) == LADDER
    assert list(dict.fromkeys(slug for slug, _ in SCHEDULES)) == LADDER
    assert [(rung.slug, rung.name) for rung in RUNGS.values()] == [(slug, slug) for slug in LADDER]


@pytest.mark.parametrize("slug", LADDER)
def test_a_rung_says_what_it_is(slug: str) -> None:
    rung = RUNGS[slug]
    assert rung.title
    assert rung.flaw is not None
    assert rung.flaw.endswith(".")
    assert rung.breaks in ("conserved", "progress", "no false refusal", "once")
    assert rung.breaks_under in get_args(Trigger)
    assert rung.survives <= {"expiry", "pause", "crash"}
    for said in ("Flawed", "schedule", f"`{rung.fixed_by}`", *rung.source.split(", ")):
        assert said in (type(rung).__doc__ or ""), said


def test_whoever_follows_the_fixes_arrives_at_a_strategy_that_ships() -> None:
    for slug in LADDER:
        seen = []
        while slug not in NAMES:
            assert slug not in seen
            seen.append(slug)
            slug = RUNGS[slug].fixed_by or ""


@pytest.mark.parametrize("slug", LADDER)
def test_it_survives_a_crash_exactly_if_it_says_so(redis: Redis, slug: str) -> None:
    """A crash of one who is alone, at whichever step."""
    broken = world_of.one_dies(seller(slug), redis)
    assert broken == (None if "crash" in RUNGS[slug].survives else "conserved")


LOCKING = {
    "lock-under-the-wrong-isolation": 1,
    "refusal-swallowed": 2,
    "order-after-the-unlock": 1,
    "exception-leaves-the-lock": 1,
    "segmented-keys": 1,
}
"""Those whose lock has a TTL, and the units there are when two want one each."""


@pytest.mark.parametrize(("slug", "units"), LOCKING.items())
def test_it_survives_a_pause_exactly_if_it_says_so(redis: Redis, slug: str, units: int) -> None:
    """The holder stands still until his TTL is over and another has come, at whichever step."""
    broken = world_of.one_is_paused(seller(slug), redis, units)
    assert broken == (None if "pause" in RUNGS[slug].survives else "conserved")


@pytest.mark.parametrize("slug", [slug for slug in LADDER if slug not in LOCKING])
def test_where_nothing_expires_expiry_and_pauses_do_nothing(redis: Redis, slug: str) -> None:
    till = seller(slug)(8)
    with each_step(lambda _: expiring(redis)):
        assert till.buy() is Placement.COMMITTED
    assert RUNGS[slug].survives >= {"expiry", "pause"}


def expiring(redis: Redis) -> None:
    """Fail if a key expires."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: [key for key in redis.scan_iter() if redis.pttl(key) >= 0]).result(PATIENCE) == []


# What is special


def test_the_lock_is_free_before_the_commit(redis: Redis) -> None:
    till = RungTill("lock-inside-the-transaction", 1)
    seen = []

    def look(step: str) -> None:
        if step == "COMMIT":
            lease = ThreadLock(f"lab:{till.sku}").acquire(blocking=False)
            seen.append(lease is not None and lease.release())

    with each_step(look):
        till.buy()
    assert seen == [True]


def test_the_snapshot_is_older_than_the_lock_and_the_orders_in_between_are_not_seen(redis: Redis) -> None:
    till = RungTill("lock-under-the-wrong-isolation", 5)
    with comes_before("^EVALSHA$", partial(till.buy, 4), redis):
        assert till.buy(4) is Placement.COMMITTED
    assert till.figures() == Figures(till.sku, 5, -3, 8)


def test_who_waits_for_the_lock_with_an_old_snapshot_sells_the_last_unit_too(redis: Redis) -> None:
    """As it happens under load: B waits for A's lock, and has looked before."""
    till = RungTill("lock-under-the-wrong-isolation", 1)
    with comes_before("^COMMIT$", till.buy, redis):
        till.buy()
    assert till.figures() == Figures(till.sku, 1, -1, 2)


def test_the_buyer_whose_refusal_was_swallowed_has_an_order_and_the_stock_shows_nothing(redis: Redis) -> None:
    till = RungTill("refusal-swallowed", 1)
    assert [till.buy() for _ in range(3)] == [Placement.COMMITTED] * 3
    assert till.figures() == Figures(till.sku, 1, 0, 3)


def test_the_unit_is_gone_and_nobody_has_it(redis: Redis) -> None:
    till = RungTill("order-after-the-unlock", 2)
    seen: list[int] = []

    def count_commits(step: str) -> None:
        if step == "COMMIT":
            seen.append(1)
        elif len(seen) == 1:
            os._exit(9)

    assert killed(lambda: till.place(till.request()), count_commits)
    assert till.figures() == Figures(till.sku, 2, 1, 0)
    assert till.figures().drift == 1


def test_the_next_one_gets_the_lock_when_the_ttl_is_over(redis: Redis, settings: Any) -> None:
    settings.STOCK_LOCK_WAIT = 0.01
    till = RungTill("exception-leaves-the-lock", 1)
    refused = till.buy(2)
    assert isinstance(till.buy(), StockBusy)
    del refused
    ttl_passes(redis)
    assert till.buy() is Placement.COMMITTED
    assert not isinstance(till.buy(), StockBusy)


def test_every_unit_is_in_a_segment_and_sold_from_it(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    till = RungTill("segmented-keys", 6)
    rung = RUNGS["segmented-keys"]
    segments = [int(redis.get(f"lab:segmented-keys:{till.sku}:{segment}") or 0) for segment in range(4)]
    assert (sorted(segments), rung.copy(till.sku)) == ([1, 1, 2, 2], 6)
    for segment in range(4):
        monkeypatch.setattr(SegmentedKeys, "pick", lambda self, segment=segment: segment)
        while till.buy() is Placement.COMMITTED:
            pass
    assert till.figures() == Figures(till.sku, 6, 0, 6)
    assert rung.copy(till.sku) == 0


def test_the_remainders_of_all_segments_would_do(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty units in fours: nobody who wants three gets the four units that are left, wherever he is sent."""
    till = RungTill("segmented-keys", 16)
    for segment in [*range(4)] * 2:
        monkeypatch.setattr(SegmentedKeys, "pick", lambda self, segment=segment: segment)
        till.buy(3)
    assert till.figures() == Figures(till.sku, 16, 4, 12)
    assert till.refuses(3) == "no false refusal"


@pytest.mark.parametrize("slug", ["redis-taken-then-the-process-dies", "redis-loses-its-last-second"])
def test_where_the_order_fails_the_units_go_back_to_the_counter(redis: Redis, slug: str) -> None:
    till = RungTill(slug, 2)
    request = till.request()
    with pytest.raises(OverLimit):
        till.rung.place(request, lambda requests: {request.id: OverLimit(till.sku, limit=1, taken=1)})
    assert till.figures() == Figures(till.sku, 2, 2, 0)
    assert till.rung.copy(till.sku) == 2


def test_the_note_of_a_request_goes_with_its_order(redis: Redis) -> None:
    till = RungTill("redis-loses-its-last-second", 2)
    till.buy()
    assert redis.hgetall("lab:{redis-loses-its-last-second}") == {}
    assert (till.rung.copy(till.sku), till.unowned()) == (1, 0)


def test_of_all_crashes_only_the_one_between_decrement_and_publish_loses_the_unit(redis: Redis) -> None:
    slug = "queue-after-decrement-as-two-calls"
    steps: list[str] = []
    first = RungTill(slug, 2)
    with each_step(steps.append):
        first.buy()
    lost = []
    for number, step in enumerate(steps):
        till = RungTill(slug, 2)
        assert dies(partial(till.place, till.request()), before=number)
        if till.law():
            lost.append(step)
            assert (till.figures().on_hand, till.unowned()) == (2, 1)
        redis.delete("lab:{queue-after-decrement-as-two-calls}")
    assert lost == ["RPUSH"]


@pytest.mark.parametrize(("dies_before", "written"), [("LLEN", 0), ("COMMIT", 0), ("LREM", 1)])
def test_what_a_dead_worker_has_published_is_written_once(redis: Redis, dies_before: str, written: int) -> None:
    """Of the queue itself nothing is wrong: only what was never in it is lost."""
    till = RungTill("queue-after-decrement-as-two-calls", 3)
    assert killed(lambda: till.place(till.request()), lambda step: os._exit(9) if step == dies_before else None)
    assert (till.figures().sold, till.unowned()) == (written, 0)
    assert till.buy() is Placement.COMMITTED
    assert till.figures() == Figures(till.sku, 3, 1, 2)
    assert redis.llen("lab:{queue-after-decrement-as-two-calls}") == 0


@pytest.mark.parametrize("step", ["advisory", "^COMMIT$", "^LREM$"])
def test_a_worker_that_another_comes_before_writes_nothing_twice(redis: Redis, step: str) -> None:
    till = RungTill("queue-after-decrement-as-two-calls", 3)
    with comes_before(step, till.buy, redis):
        till.buy()
    assert till.figures() == Figures(till.sku, 3, 1, 2)


def test_what_was_clicked_twice_and_cancelled_once_keeps_a_unit(redis: Redis) -> None:
    till = RungTill("duplicate-click", 2)
    first = till.request()
    second = till.request(like=first)
    for request in (first, second):
        assert till.place(request) is Placement.COMMITTED
    assert ledger.repeated(till.sku) == 1
    assert [ledger.cancel(second.id) for _ in range(2)] == [True, False]
    assert till.figures() == Figures(till.sku, 2, 1, 1)
    assert till.figures().conserved
    assert ledger.repeated(till.sku) == 0


@pytest.mark.parametrize("slug", LADDER)
def test_a_cart_is_sold_whole_and_the_counters_follow(redis: Redis, slug: str) -> None:
    ledger.stock_up("a", 8)
    ledger.stock_up("b", 8)
    request = new_request(("a", 1), ("b", 2))
    assert RUNGS[slug].place(request, ledger.save) is Placement.COMMITTED
    assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 8, 7, 1), Figures("b", 8, 6, 2)]
    copies = [RUNGS[slug].copy(sku) for sku in "ab"]
    assert copies in ([None, None], [7, 6])


@pytest.mark.parametrize("slug", LADDER)
def test_it_uses_keys_of_the_lab_and_leaves_the_shop_alone(redis: Redis, slug: str) -> None:
    StockItem.objects.create(sku="a", received=7, on_hand=7)
    ledger.stock_up("a", 4)
    RUNGS[slug].place(new_request(("a", 1)), ledger.save)
    assert StockItem.objects.values_list("on_hand", "version").get() == (7, 0)
    assert not Order.objects.exists()
    assert {key for key in redis.scan_iter() if not key.startswith((b"lab:", b"lock:{lab:"))} == set()


@pytest.mark.parametrize("slug", LADDER)
def test_without_redis_it_says_try_again_or_needs_none(
    redis: Redis, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = RungTill(slug, 4)
    till.buy()

    def gone(step: str) -> None:
        if step.isupper() and " " not in step and step != "COMMIT":
            raise redis_py.ConnectionError

    with each_step(gone):
        answer = till.buy()
    assert answer is Placement.COMMITTED or isinstance(answer, StockUnavailable)
