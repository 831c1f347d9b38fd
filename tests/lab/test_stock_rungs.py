"""Properties of the stock rungs (ways of selling) that no schedule shows: carts, refusals, keys, outages, ledger.

test_rungs.py runs the schedules.
"""

from __future__ import annotations

import pytest
import redis as redis_py
from django.db import transaction
from redis import Redis
from redis.connection import AbstractConnection

from inventory.audit import Figures
from inventory.errors import OverLimit, SoldOut, StockUnavailable
from inventory.models import StockItem
from inventory.requests import Placement
from lab.checkers import ledger
from lab.ladder.stock import RUNGS
from lab.ladder.stock.segmented_keys import SEGMENTS, SegmentedKeys
from lab.models import RungOrder
from shop.models import Order
from tests.factories import new_request

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

WRONG_WITH_ONE_BUYER = {"commit-after-return", "refusal-swallowed", "segmented-keys", "lua-off-by-one"}


def buy(slug: str, sku: str = "a", quantity: int = 1) -> Placement:
    return RUNGS[slug].place(new_request((sku, quantity)), ledger.save)


def test_a_commit_after_the_return_leaves_nothing_but_the_answer() -> None:
    ledger.stock_up("a", 1)
    assert [buy("commit-after-return"), buy("commit-after-return")] == [Placement.COMMITTED] * 2
    assert ledger.figures("a") == Figures("a", 1, 1, 0)
    assert transaction.get_autocommit()


@pytest.mark.parametrize("slug", [slug for slug in RUNGS if slug not in WRONG_WITH_ONE_BUYER])
def test_one_buyer_after_the_other_gets_the_right_answer(redis: Redis, slug: str) -> None:
    ledger.stock_up("a", 2)
    ledger.stock_up("b", 1)
    with pytest.raises(SoldOut, match="b: 2 wanted, 1 left"):
        RUNGS[slug].place(new_request(("a", 1), ("b", 2)), ledger.save)
    assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 2, 2, 0), Figures("b", 1, 1, 0)]
    redis.flushall()  # Some flaws leave locks or wrong counters behind.
    ledger.stock_up("a", 2)
    assert [buy(slug), buy(slug)] == [Placement.COMMITTED] * 2
    with pytest.raises(SoldOut, match="a: 1 wanted, 0 left"):
        buy(slug)
    assert ledger.figures("a") == Figures("a", 2, 0, 2)


def test_a_cart_is_sold_from_the_labs_own_tables_and_keys(redis: Redis) -> None:
    StockItem.objects.create(sku="a", received=7, on_hand=7)
    for slug in [slug for slug in RUNGS if slug != "commit-after-return"]:
        ledger.stock_up("a", 8)
        ledger.stock_up("b", 8)
        assert RUNGS[slug].place(new_request(("a", 1), ("b", 2)), ledger.save) is Placement.COMMITTED, slug
        assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 8, 7, 1), Figures("b", 8, 6, 2)], slug
        assert [RUNGS[slug].copy(sku) for sku in "ab"] in ([None, None], [7, 6]), slug
        assert [key for key in redis.scan_iter() if not key.startswith((b"lab:", b"lock:{lab:"))] == [], slug
    assert StockItem.objects.values_list("on_hand", "version").get() == (7, 0)
    assert not Order.objects.exists()


def test_without_redis_a_rung_is_unavailable_unless_it_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise redis_py.ConnectionError

    ledger.stock_up("a", len(RUNGS))
    needs_none = {slug for slug, rung in RUNGS.items() if rung.copy("a") is None and slug not in LOCKED}
    monkeypatch.setattr(AbstractConnection, "send_packed_command", fail)
    for slug in RUNGS:
        if slug in needs_none:
            assert buy(slug) is Placement.COMMITTED, slug
        else:
            with pytest.raises(StockUnavailable):
                buy(slug)


LOCKED = {
    "lock-under-the-wrong-isolation",
    "commit-after-return",
    "refusal-swallowed",
    "order-after-the-unlock",
    "exception-leaves-the-lock",
    "segmented-keys",
}
"""Rungs whose lock is in Redis."""


@pytest.mark.parametrize("slug", ["redis-taken-then-the-process-dies", "redis-loses-its-last-second"])
def test_a_refused_order_returns_its_units_to_the_counter(redis: Redis, slug: str) -> None:
    ledger.stock_up("a", 2)
    request = new_request(("a", 1))
    with pytest.raises(OverLimit):
        RUNGS[slug].place(request, lambda requests: {request.id: OverLimit("a", limit=1, taken=1)})
    assert (ledger.figures("a"), RUNGS[slug].copy("a")) == (Figures("a", 2, 2, 0), 2)
    buy(slug)
    assert (RUNGS[slug].copy("a"), ledger.unowned("a")) == (1, 0)
    assert redis.hgetall(f"lab:{{{slug}}}") == {}, "the note of a request goes with its order"


def send_to(segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentedKeys, "pick", lambda self: segment)


def test_each_segment_is_sold_out(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.stock_up("a", 6)
    rung = RUNGS["segmented-keys"]
    segments = [int(redis.get(f"lab:segmented-keys:a:{segment}") or 0) for segment in range(SEGMENTS)]
    assert (sorted(segments), rung.copy("a")) == ([1, 1, 2, 2], 6)
    for segment, units in enumerate(segments):
        send_to(segment, monkeypatch)
        assert [buy("segmented-keys") for _ in range(units)] == [Placement.COMMITTED] * units
        with pytest.raises(SoldOut):
            buy("segmented-keys")
    assert (ledger.figures("a"), rung.copy("a")) == (Figures("a", 6, 0, 6), 0)


@pytest.mark.parametrize("segment", range(SEGMENTS))
def test_a_cart_is_refused_although_segments_have_enough(segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.stock_up("a", 4)
    send_to(segment, monkeypatch)
    with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
        buy("segmented-keys", quantity=2)
    assert ledger.figures("a").on_hand == 4


def test_the_ledger_refuses_nothing_and_counts_repeated_orders() -> None:
    request = new_request(("a", 1), ("b", 2))
    assert ledger.save([request, request]) == {}
    assert sorted(RungOrder.objects.values_list("order", "sku", "quantity")) == sorted(
        [(request.id, "a", 1), (request.id, "b", 2)] * 2
    )
    assert set(RungOrder.objects.values_list("customer", "key")) == {(request.customer, request.key)}
    for customer, key in ((2, "x"), (2, "y"), (3, "x")):
        ledger.save([new_request(("a", 1), customer=customer, key=key)])
    assert (ledger.repeated("a"), ledger.repeated("c")) == (1, 0)


def test_an_order_is_cancelled_once_and_a_repeated_one_keeps_its_units() -> None:
    for sku in "ab":
        ledger.stock_up(sku, 5)
    first = new_request(("a", 1), ("b", 2))
    again = new_request(("a", 1), customer=first.customer, key=first.key)
    for request in (first, again):
        RUNGS["duplicate-click"].place(request, ledger.save)
    assert ledger.repeated("a") == 1
    assert [ledger.cancel(first.id) for _ in range(2)] == [True, False]
    assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 5, 4, 1), Figures("b", 5, 5, 0)]
    assert ledger.repeated("a") == 0
    ledger.stock_up("a", 5)
    counted = new_request(("a", 2))
    RUNGS["lock-under-the-wrong-isolation"].place(counted, ledger.save)
    assert ledger.figures("a") == Figures("a", 5, 3, 2)
    ledger.cancel(counted.id)
    assert ledger.figures("a") == Figures("a", 5, 5, 0)


def test_stocking_up_resets_one_sku_and_leaves_the_others() -> None:
    for sku in "ab":
        ledger.stock_up(sku, 2)
        ledger.save([new_request((sku, 1))])
    ledger.stock_up("a", 5)
    assert [ledger.figures(sku) for sku in "ab"] == [Figures("a", 5, 5, 0), Figures("b", 2, 2, 1)]
    assert {sku: {rung.copy(sku) for rung in RUNGS.values()} for sku in "ab"} == {"a": {None, 5}, "b": {None, 2}}
