"""The counters in Redis. The negative control of each guard makes the same calls to a script without the guard."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pytest
from django.conf import settings
from redis import ConnectionPool, Redis
from redis.crc import key_slot

from inventory.counters import whole
from inventory.counters.segmented import segment_count_key, segment_name
from inventory.counters.whole import RESERVATIONS, RESERVED_UNITS, Counters, counter_key
from inventory.errors import SoldOut, StockNotLoaded, StockReserved, StockUnavailable
from inventory.requests import OrderRequest
from tests.factories import new_request
from tests.inventory.conftest import replace_in_script
from tests.locking.support import CutConnection


@pytest.fixture(params=["bytes", "text"])
def counters(redis: Redis, request: pytest.FixtureRequest) -> Counters:
    """The counters of the shop's Redis, through a client that returns bytes or one that returns text."""
    return Counters(Redis.from_url(settings.REDIS_LOCATION, decode_responses=request.param == "text"))


def load(counters: Counters, **units: int) -> Counters:
    for sku, on_hand in units.items():
        counters.load(sku, on_hand, (), make=True)
    return counters


def take(counters: Counters, *cart: tuple[str, int]) -> OrderRequest:
    order = new_request(*cart)
    counters.take(order)
    return order


def assert_units(counters: Counters, left: Sequence[int | None], **reserved: int) -> None:
    """Check the counters of a, b, …, and all reserved units."""
    assert list(counters.left("abc"[: len(left)]).values()) == list(left)
    assert counters.reserved() == reserved


def test_take_subtracts_and_reserves(counters: Counters) -> None:
    load(counters, a=3)
    before = counters.client.time()[0]
    first, second = take(counters, ("a", 2)), take(counters, ("a", 1))
    assert_units(counters, [0], a=3)
    found = counters.reservations()
    assert {each.order_id: each.items for each in found} == {first.id: [("a", 2)], second.id: [("a", 1)]}
    assert all(before <= each.at <= counters.client.time()[0] for each in found)
    assert counters.order_ids() == {first.id, second.id}
    keys = counter_key("a"), RESERVATIONS, RESERVED_UNITS
    assert {counters.client.ttl(key) for key in keys} == {-1}, "the keys do not expire"


def test_without_the_comparison_it_oversells(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in_script(monkeypatch, whole, "TAKE", "tonumber(left) < item[2]", "tonumber(left) < 0")
    counters = load(Counters(redis), a=0)
    take(counters, ("a", 1))
    assert_units(counters, [-1], a=1)


def test_take_is_all_or_nothing(counters: Counters) -> None:
    load(counters, a=2, b=1)
    with pytest.raises(SoldOut, match="b: 2 wanted, 1 left"):
        take(counters, ("a", 1), ("b", 2))
    with pytest.raises(StockNotLoaded, match="c has no counter"):
        take(counters, ("a", 1), ("c", 1))
    assert_units(counters, [2, 1, None])
    take(counters, ("a", 2), ("b", 1))
    assert_units(counters, [0, 0], a=2, b=1)


@pytest.mark.parametrize("guarded", [True, False])
def test_take_is_idempotent(redis: Redis, monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    if not guarded:
        replace_in_script(monkeypatch, whole, "TAKE", 'redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1', "false")
    counters = load(Counters(redis), a=6)
    order = take(counters, ("a", 2))
    for _ in range(2):
        counters.take(order)
    assert_units(counters, [4 if guarded else 0], a=2 if guarded else 6)


@pytest.mark.parametrize("wanted", [2, 3])
def test_reserved_units_are_not_sold_out(counters: Counters, wanted: int) -> None:
    first = take(load(counters, a=3, b=3), ("a", 2))
    with pytest.raises(StockReserved) as early:
        take(counters, ("a", wanted), ("b", 1))
    assert early.value.sku == "a"
    with pytest.raises(SoldOut, match="a: 4 wanted, 3 left"):
        take(counters, ("a", 4))
    counters.confirm_reservation(first.id, first.skus)
    with pytest.raises(SoldOut, match=f"a: {wanted} wanted, 1 left"):
        take(counters, ("a", wanted))
    assert_units(counters, [1, 3])


def test_without_reserved_units_it_is_sold_out_early(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in_script(monkeypatch, whole, "TAKE", "total < item[2]", "true")
    counters = load(Counters(redis), a=1)
    first = take(counters, ("a", 1))
    with pytest.raises(SoldOut):
        take(counters, ("a", 1))
    counters.give_back(first.id, first.skus)
    assert_units(counters, [1])


@pytest.mark.parametrize("lost", ["the answer", "its return too"])
def test_a_lost_answer_is_given_back(redis: Redis, no_redis: Redis, lost: str) -> None:
    class Cut(CutConnection):
        pass

    path = redis.connection_pool.connection_kwargs["path"]
    counters = Counters(
        Redis(connection_pool=ConnectionPool(connection_class=Cut, path=path, retry=None, retry_on_timeout=False))
    )
    first, order = take(load(counters, a=3), ("a", 1)), new_request(("a", 1))
    counters.give_back(first.id, first.skus)  # Let the server cache the scripts first.
    if lost == "its return too":
        counters._end_reservation = Counters(no_redis)._end_reservation
    Cut.cut_next = True
    with pytest.raises(StockUnavailable):
        counters.take(order)
    assert Cut.cuts == 1
    withheld = 0 if lost == "the answer" else 1
    assert (counters.left(["a"]), redis.hlen(RESERVATIONS)) == ({"a": 3 - withheld}, withheld)
    counters.take(order)
    assert_units(counters, [2], a=1)


@pytest.mark.parametrize("guarded", [True, False])
def test_give_back_is_idempotent(redis: Redis, monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    if not guarded:
        replace_in_script(monkeypatch, whole, "END_RESERVATION", 'redis.call("HDEL", KEYS[1], ARGV[1])')
    counters = load(Counters(redis), a=5)
    order = take(counters, ("a", 2))
    for _ in range(2):
        counters.give_back(order.id, order.skus)
    assert counters.left(["a"]) == {"a": 5 if guarded else 7}
    assert (counters.reserved() == {}) is guarded


def test_give_back_without_a_reservation(counters: Counters) -> None:
    load(counters, a=5, b=5)
    assert counters.give_back(new_request(("a", 2)).id, ["a"]) is False
    first = take(counters, ("a", 2))
    take(counters, ("a", 1), ("b", 1))
    counters.confirm_reservation(first.id, first.skus)
    counters.give_back(first.id, first.skus)
    assert_units(counters, [2, 4], a=1, b=1)


def test_give_back_creates_no_counter(counters: Counters) -> None:
    order = take(load(counters, a=5, b=5), ("a", 2), ("b", 2))
    counters.unload(["a"])
    counters.give_back(order.id, order.skus)
    assert_units(counters, [None, 5])


def test_a_counter_is_on_hand_minus_reserved(counters: Counters) -> None:
    assert counters.load("a", 5, (), make=False) is None
    assert_units(counters, [None])
    assert counters.load("a", 5, (), make=True) == 0
    take(counters, ("a", 2))
    assert counters.load("a", 5, (), make=False) == 0
    assert_units(counters, [3], a=2)
    assert counters.load("a", 9, (), make=False) == 4
    assert_units(counters, [7], a=2)
    counters.unload(["a"])
    assert counters.load("a", 5, (), make=True) == 0
    assert_units(counters, [3], a=2)


@pytest.mark.parametrize(("most", "corrected"), [(1, []), (2, [("a", 0, 2)])])
def test_many_reservations_are_not_added_up(
    counters: Counters, monkeypatch: pytest.MonkeyPatch, most: int, corrected: list[tuple[str, int, int]]
) -> None:
    """The script recounts no more than `RECOUNTED` reservations, because Redis answers nobody while a script runs."""
    monkeypatch.setattr(whole, "RECOUNTED", most)
    take(load(counters, a=9), ("a", 1))
    take(counters, ("a", 1))
    counters.client.delete(RESERVED_UNITS)
    assert counters.recount() == corrected


def test_load_counts_committed_orders_once(counters: Counters) -> None:
    committed = take(load(counters, a=5, b=5), ("a", 2), ("b", 1))
    take(counters, ("a", 1))
    assert counters.load("a", 3, {committed.id, new_request(("a", 1)).id}, make=False) == 0
    assert counters.load("b", 4, {committed.id}, make=False) == 0
    assert counters.load("b", 4, (), make=False) == -1, "negative control: without the committed order"
    counters.load("b", 4, {committed.id}, make=False)
    counters.confirm_reservation(committed.id, committed.skus)
    assert_units(counters, [2, 4], a=1)


@pytest.mark.parametrize("units", [0.5, -0.5, True, "1"])
def test_a_reservation_of_a_fraction_is_unreadable(
    counters: Counters, units: object, caplog: pytest.LogCaptureFixture
) -> None:
    order = new_request(("a", 1))
    counters.client.hset(RESERVATIONS, str(order.id), json.dumps({"items": [["a", units]], "at": 1}))
    assert counters.reservations() == []
    assert not counters.give_back(order.id, ["a"])
    assert [record.args[0] for record in caplog.records if record.args]


def test_unload_deletes_only_its_skus(counters: Counters) -> None:
    load(counters, a=1, b=1, c=1)
    counters.unload([])
    counters.unload(["a", "b", "unknown"])
    assert_units(counters, [None, None, 1])
    assert counters.left([]) == {}


@pytest.mark.parametrize("sku", ["a", "café-☕", "with space", "with}brace", "{stock}", "a" * 64])
def test_all_keys_are_in_one_slot(sku: str) -> None:
    keys = (counter_key(sku), segment_count_key(sku), counter_key(segment_name(sku, 4)))
    assert {key_slot(key.encode()) for key in keys} == {key_slot(RESERVATIONS.encode())}


@pytest.mark.parametrize("call", ["give_back", "confirm_reservation"])
def test_an_unreachable_redis_is_logged(no_redis: Redis, caplog: pytest.LogCaptureFixture, call: str) -> None:
    order = new_request(("a", 1))
    with caplog.at_level(logging.WARNING):
        assert getattr(Counters(no_redis), call)(order.id, order.skus) is False
    assert [str(order.id) in message for message in caplog.messages] == [True]
    assert "reconciliation" in caplog.text


@pytest.mark.parametrize("outcome", ["give_back", "confirm_reservation"])
def test_a_full_redis_ends_no_half_of_a_reservation(
    redis: Redis, counters: Counters, full: Callable[[], AbstractContextManager[None]], outcome: str
) -> None:
    """A full Redis ends a reservation completely or not at all, although Redis does not roll back scripts."""
    counters.load("a", 5, [], make=True)
    order = new_request(("a", 2))
    counters.take(order)
    before = everything(redis)
    with full():
        assert getattr(counters, outcome)(order.id, order.skus) is False
    assert everything(redis) == before
    counters.end_again()
    assert counters.order_ids() == set()
    assert counters.reserved() == {}
    assert counters.left(["a"]) == {"a": 5 if outcome == "give_back" else 3}
    assert not counters.unended


def everything(redis: Redis) -> dict[bytes, bytes]:
    return {key: redis.dump(key) for key in redis.scan_iter("*")}
