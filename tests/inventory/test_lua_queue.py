"""`lua-queue`: an accepted order is saved once or rejected with a reason, even if a process dies."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import Error, InterfaceError, OperationalError, connection
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from inventory import stock
from inventory.counters.whole import RESERVATIONS, RESERVED_UNITS, counter_key
from inventory.errors import Duplicate, OverLimit, Refusal, SoldOut, StockNotLoaded
from inventory.queue.bought import bought_key
from inventory.queue.entries import QueueEntry, encode
from inventory.queue.signals import worker_needed
from inventory.queue.stream import GROUP, STREAM, WOKEN, Queue
from inventory.requests import OrderRequest, Placement, QueuedOrder, ReturnedUnits, Save
from inventory.strategies import lua_queue, registry
from inventory.strategies.base import Strategy
from inventory.strategies.lua_queue import LuaQueue
from tests.factories import at_once, count_by_kind, elsewhere, new_request, preheated, slow
from tests.inventory.conformance import StrategyConformance
from tests.inventory.conftest import Ledger, after, execute
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

OVER_LIMIT = OverLimit("a", limit=1, taken=1)


class Followed(LuaQueue):
    """Saves each queued order at once, and returns its outcome."""

    ledger: Ledger

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        super()._place(order, save)
        self.work(save, self.ledger.reject, self.ledger.saved)
        wait_for(lambda: (queued := self.queue().find(order.id)) is None or queued.order is None)
        if order.id in self.ledger.rejected:
            raise SoldOut(order.items[0].sku, wanted=0, left=0)
        return Placement.COMMITTED


class TestFollowed(StrategyConformance):
    """The tests of every strategy, except those that expect the answer after the save. This file replaces them."""

    test_save_runs_in_the_transaction = None  # type: ignore[assignment]
    test_a_refusal_of_save_takes_nothing = None  # type: ignore[assignment]
    test_a_failed_save_takes_nothing = None  # type: ignore[assignment]

    @pytest.fixture
    def strategy(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Strategy:
        strategy = Followed(registry.counters, registry.queue)
        monkeypatch.setattr(strategy, "ledger", ledger, raising=False)
        # As in the shop, let `lua` correct the counters for both strategies.
        monkeypatch.setattr(Followed, "refresh", registry.get("lua").refresh)
        monkeypatch.setattr(Followed, "units_returned", registry.get("lua").units_returned)
        return strategy


@pytest.fixture
def strategy(ledger: Ledger) -> LuaQueue:
    """The strategy `lua-queue`, with three units each of `a` and `b` preheated."""
    strategy = preheated("lua-queue", {"a": 3, "b": 3})
    assert isinstance(strategy, LuaQueue)
    return strategy


@pytest.fixture
def heir(redis: Redis) -> LuaQueue:
    """A worker that takes over other workers' entries without delay."""
    return LuaQueue(registry.counters, lambda: Queue(redis, dead=0))


def put(strategy: LuaQueue, *carts: tuple[str, int], **options: Any) -> list[OrderRequest]:
    """Queue orders with one item each."""
    orders = [new_request(cart, **options) for cart in carts]
    for order in orders:
        strategy.place(order, lambda orders: {})
    return orders


def work(strategy: LuaQueue, ledger: Ledger, save: Save | None = None) -> int:
    return strategy.work(save or ledger.save, ledger.reject, ledger.saved)


def redis_of(strategy: LuaQueue) -> Any:
    return strategy.queue().client


def find(strategy: LuaQueue, order: OrderRequest) -> QueuedOrder:
    found = strategy.queue().find(order.id)
    assert found is not None
    return found


def workers(strategy: LuaQueue) -> set[str]:
    return {worker["name"].decode() for worker in redis_of(strategy).xinfo_consumers(STREAM, GROUP)}


def assert_at_rest(strategy: LuaQueue) -> None:
    """Check that nothing is queued or reserved, and that no wake-up of a worker is pending."""
    redis = redis_of(strategy)
    assert [redis.exists(key) for key in (RESERVATIONS, RESERVED_UNITS, WOKEN)] == [0, 0, 0]
    assert redis.xlen(STREAM) == 0


def test_the_place_counts_from_the_last_finished(strategy: LuaQueue, ledger: Ledger) -> None:
    orders = [new_request(("a", 1)) for _ in range(3)]
    assert [strategy.place(order, ledger.save) for order in orders] == [Placement(1), Placement(2), Placement(3)]
    assert strategy.place(orders[1], ledger.save) == Placement(2), "the script is sent again after a lost answer"
    assert [find(strategy, order).place for order in orders] == [1, 2, 3]
    work(strategy, ledger)
    assert strategy.place(orders[1], ledger.save) == Placement(1), "it is saved by now"
    late = new_request(("b", 1))
    assert strategy.place(late, ledger.save) == Placement(1)
    assert find(strategy, late).place == 1


def test_the_limit_holds_in_redis(strategy: LuaQueue, ledger: Ledger) -> None:
    put(strategy, ("a", 2), limit=2)
    with pytest.raises(OverLimit) as refused:
        put(strategy, ("a", 1), limit=2)
    assert (refused.value.limit, refused.value.taken) == (2, 2)
    put(strategy, ("a", 1), customer=2, limit=2)
    strategy.units_returned([ReturnedUnits(1, 1, "a", 2)], ledger.saved)
    stock.deliver("a", 2)
    strategy.preheat(["a"], ledger.saved)
    assert strategy.place(new_request(("a", 2), limit=2), ledger.save) == Placement(3)


def test_a_key_is_queued_once(strategy: LuaQueue, ledger: Ledger) -> None:
    (order,) = put(strategy, ("a", 1), key="mine")
    strategy.place(order, ledger.save)
    with pytest.raises(Duplicate) as refused:
        put(strategy, ("a", 1), key="mine")
    assert refused.value.existing == order.id
    put(strategy, ("a", 1), key="mine", customer=2)
    assert strategy.counters().left(["a"]) == {"a": 1}
    assert strategy.queued_order(1, "mine").order == order  # type: ignore[union-attr]
    assert strategy.queued_order(3, "mine") is None


def test_16_orders_with_one_key_are_queued_once(strategy: LuaQueue, ledger: Ledger) -> None:
    orders = [new_request(("a", 1), key="mine") for _ in range(16)]
    answers = at_once(*[partial(strategy.place, order, ledger.save) for order in orders])
    assert count_by_kind(answers) == {"QUEUED": 1, "Duplicate": 15}
    assert (len(strategy.queue()), strategy.counters().left(["a"])) == (1, {"a": 2})


def test_a_lost_counter_is_not_loaded(strategy: LuaQueue, ledger: Ledger) -> None:
    put(strategy, ("a", 1))
    strategy.counters().unload(["a"])
    with pytest.raises(StockNotLoaded):
        put(strategy, ("a", 1))
    strategy.preheat(["a"], ledger.saved)
    assert strategy.counters().left(["a"]) == {"a": 2}, "on hand minus queued"
    work(strategy, ledger)
    ledger.assert_law(a=(2, 1), b=(3, 0))


@pytest.fixture
def woken() -> Iterator[list[Any]]:
    calls: list[Any] = []

    def wake(**arguments: Any) -> None:
        calls.append(arguments)

    worker_needed.connect(wake, weak=False)
    yield calls
    worker_needed.disconnect(wake)


def test_only_the_first_order_wakes_a_worker(strategy: LuaQueue, ledger: Ledger, woken: list[Any]) -> None:
    put(strategy, ("a", 1), ("a", 1), ("b", 1))
    assert len(woken) == 1
    work(strategy, ledger)
    put(strategy, ("b", 1))
    assert len(woken) == 2


@pytest.mark.parametrize("reads_again", [True, False])
def test_an_order_after_the_last_read_is_saved(
    strategy: LuaQueue, ledger: Ledger, woken: list[Any], monkeypatch: pytest.MonkeyPatch, reads_again: bool
) -> None:
    """An order is saved even if it arrives between the worker's last read and the clearing of the wake-up marker.

    Such an order wakes no worker. Negative control: a worker that does not read again leaves it in the queue.
    """
    clear, read, cleared = Queue.clear_wake_up, Queue.read, []

    def clear_late(queue: Queue) -> None:
        if not cleared:
            put(strategy, ("a", 1))
        clear(queue)
        cleared.append(1)

    def blind(queue: Queue, *arguments: Any) -> list[QueueEntry]:
        return [] if cleared and not reads_again else read(queue, *arguments)

    put(strategy, ("b", 1))
    monkeypatch.setattr(Queue, "clear_wake_up", clear_late)
    monkeypatch.setattr(Queue, "read", blind)
    assert work(strategy, ledger) == (2 if reads_again else 1)
    assert (len(woken), len(strategy.queue())) == (1, 0 if reads_again else 1)


def test_100_orders_are_saved_in_one_transaction(strategy: LuaQueue, ledger: Ledger) -> None:
    stock.deliver("a", 97)
    strategy.preheat(["a"], ledger.saved)
    batches: list[int] = []

    def count(orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        batches.append(len(orders))
        return ledger.save(orders)

    put(strategy, *[("a", 1)] * 100)
    assert work(strategy, ledger, count) == 100
    assert batches == [100]
    ledger.assert_law(a=(0, 100), b=(3, 0))


def test_a_refused_order_is_rejected_and_a_duplicate_refers_to_the_existing_order(
    strategy: LuaQueue, ledger: Ledger
) -> None:
    (refused, duplicate, another), existing = put(strategy, *[("a", 1)] * 3), uuid4()
    work(strategy, ledger, ledger.refuse({refused.id: OVER_LIMIT, duplicate.id: Duplicate(existing)}))
    assert ledger.rejected == {refused.id: "a: at most 1 per customer, 1 taken already"}
    assert find(strategy, duplicate).existing == existing
    assert ledger.orders() == [another.id]
    assert_at_rest(strategy)
    ledger.assert_law(a=(2, 1), b=(3, 0))


def test_a_counter_too_high_is_corrected(strategy: LuaQueue, ledger: Ledger) -> None:
    strategy.counters().load("a", 5, (), make=False)
    orders = put(strategy, *[("a", 1)] * 5)
    work(strategy, ledger)
    assert ledger.orders() == [order.id for order in orders[:3]]
    assert set(ledger.rejected) == {order.id for order in orders[3:]}
    ledger.assert_law(a=(0, 3), b=(3, 0))


@pytest.mark.parametrize("looks", [True, False], ids=["", "without looking for saved orders"])
def test_committed_orders_stay_sold_without_stock(
    strategy: LuaQueue, ledger: Ledger, heir: LuaQueue, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """A committed order stays sold when another worker takes over its entry, although no stock is left."""
    order = new_request(("a", 3), ("b", 1))
    strategy.place(order, ledger.save)
    with monkeypatch.context() as dying:
        dying.setattr(Queue, "finish_saved", lambda *arguments: sys.exit())
        with pytest.raises(SystemExit):
            work(strategy, ledger)
    asked: list[int] = []

    def saved(order_ids: Collection[UUID]) -> set[UUID]:
        asked.append(1)
        return ledger.saved(order_ids) if looks or len(asked) > 1 else set()

    assert heir.work(ledger.save, ledger.reject, saved) == 1
    assert (order.id in ledger.rejected) is not looks
    assert heir.queue().bought.of("a") == {(order.sale, order.customer): 3}, "it is sold all the same, to Redis too"
    assert_at_rest(strategy)
    ledger.assert_law(a=(0, 3), b=(2, 1))


def test_a_dead_worker_is_removed_once_its_entries_are_taken_over(
    strategy: LuaQueue, ledger: Ledger, heir: LuaQueue, caplog: pytest.LogCaptureFixture
) -> None:
    put(strategy, ("a", 1))
    strategy.queue().read("dead with an order", 10)
    strategy.queue().read("dead", 10)
    put(strategy, ("a", 1))
    assert work(strategy, ledger) == 1
    assert workers(strategy) == {"dead", "dead with an order"}, "they may be alive"
    heir.queue().remove_worker("nobody")
    assert workers(strategy) == {"dead with an order"}
    heir.queue().remove_worker("dead with an order")
    assert caplog.messages == []
    assert work(heir, ledger) == 1
    assert caplog.messages == ["Took over 1 queued orders from a worker that did not finish them."]
    assert workers(strategy) == set()
    ledger.assert_law(a=(1, 2), b=(3, 0))


def test_without_memory_for_a_group_of_workers_a_reader_is_told_so(
    redis: Redis, heir: LuaQueue, full: Callable[[], AbstractContextManager[None]]
) -> None:
    with full(), pytest.raises(OutOfMemoryError):
        heir.queue().read("worker", 10)
    assert heir.queue().read("worker", 10) == []
    assert [group["name"] for group in redis.xinfo_groups(STREAM)] == [GROUP.encode()]


@pytest.mark.parametrize("end", ["saved", "refused", "rejected"])
def test_a_full_redis_takes_no_half_of_an_order_off_the_queue(
    strategy: LuaQueue, redis: Redis, full: Callable[[], AbstractContextManager[None]], end: str
) -> None:
    """A full Redis ends a queue entry completely or not at all, although Redis does not roll back scripts."""
    put(strategy, ("a", 1))
    queue = strategy.queue()
    (entry,) = queue.read("worker", 10)
    kept = [*redis.scan_iter("*reserved*"), *redis.scan_iter("*counter*"), *redis.scan_iter("*:key:*")]
    before = {key: redis.dump(key) for key in kept}

    def finish() -> None:
        if end == "saved":
            queue.finish_saved([entry])
        else:
            queue.finish_refused(entry, existing=uuid4() if end == "refused" else None, reason="sold out")

    with full(), pytest.raises(OutOfMemoryError):
        finish()
    assert {key: redis.dump(key) for key in kept} == before
    assert queue.has(entry.entry_id)
    finish()
    assert len(queue) == 0
    assert registry.counters().reserved() == {}
    assert registry.counters().left(["a"]) == {"a": 2 if end == "saved" else 3}


@pytest.mark.parametrize("missing", [0, 1])
def test_units_of_saved_orders_hide_no_unit_that_redis_does_not_count(
    strategy: LuaQueue, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    def gone(*rest: object) -> None:
        raise RedisConnectionError("gone")

    left = 1 + missing
    redis_of(strategy).decrby(counter_key("a"), missing)
    put(strategy, ("a", 3 - left), ("b", 1))
    with monkeypatch.context() as away:
        away.setattr(Queue, "finish_saved", gone)  # Orders are saved, and their reservations stay.
        with pytest.raises(RedisConnectionError):
            work(strategy, ledger)
    put(strategy, ("b", 1))
    with pytest.raises(StockNotLoaded if missing else SoldOut):
        strategy.place(new_request(("a", 2)), ledger.save, ledger.saved)
    with pytest.raises(SoldOut):
        strategy.place(new_request(("b", 2)), ledger.save, ledger.saved)
    strategy.preheat(["a", "b"], ledger.saved)
    for cart in ("a", left + 1), ("b", 2):
        with pytest.raises(SoldOut):
            strategy.place(new_request(cart), ledger.save, ledger.saved)
    assert put(strategy, ("a", left))


@pytest.mark.parametrize(("times", "answer"), [(1, SoldOut), (2, StockNotLoaded)])
def test_orders_ended_between_the_two_reads_are_no_doubt(
    strategy: LuaQueue, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, times: int, answer: type[Exception]
) -> None:
    """If queued orders end between the reads of Postgres and Redis, a second look still finds the sku sold out.

    Negative control: if orders end during both looks, the customer must try again.
    """
    put(strategy, *[("a", 1)] * 2)
    monkeypatch.setattr(lua_queue, "BATCH", 1)
    looks: list[str] = []
    original = Queue.being_saved

    def late(queue: Queue, sku: str) -> tuple[int, Mapping[UUID, int]]:
        looks.append(sku)
        if len(looks) <= times:
            elsewhere(lambda: strategy.work(ledger.save, ledger.reject, ledger.saved, shift=0))
        return original(queue, sku)

    monkeypatch.setattr(Queue, "being_saved", late)
    with pytest.raises(answer):
        strategy.place(new_request(("a", 2)), ledger.save, ledger.saved)
    assert len(looks) == 2
    work(strategy, ledger)
    ledger.assert_law(a=(1, 2), b=(3, 0))


def test_sold_out_before_any_worker_came(strategy: LuaQueue, ledger: Ledger) -> None:
    put(strategy, ("a", 3))
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 1)), ledger.save, ledger.saved)
    assert strategy.queue().being_saved("a") == (3, {})


def test_a_group_that_another_worker_has_just_created_is_used(strategy: LuaQueue, redis: Redis) -> None:
    (order,) = put(strategy, ("a", 1))
    redis.xgroup_create(STREAM, GROUP, id="0")
    strategy.queue()._create_group()
    assert [entry.order for entry in strategy.queue().read("worker", 10)] == [order]


SURROUNDINGS = {
    "a read-only server": "SET TRANSACTION READ ONLY; UPDATE inventory_stockitem SET received = received",
    "no such column": "SELECT no_such_column FROM inventory_stockitem",
    "a new column": "INSERT INTO inventory_stockitem (sku) VALUES ('new')",
    "a sequence that is behind": "INSERT INTO inventory_stockitem SELECT * FROM inventory_stockitem",
    "no such statement": "EXECUTE no_such_statement",
    "too slow": "SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)",
    "a lost connection": "SELECT pg_terminate_backend(pg_backend_pid())",
}


@pytest.mark.parametrize("statement", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_orders_stay_queued_when_none_can_be_saved(strategy: LuaQueue, ledger: Ledger, statement: str) -> None:
    orders = put(strategy, *[("a", 1)] * 3)
    for _ in range(3):
        with pytest.raises(Error):
            work(strategy, ledger, after(partial(execute, statement), ledger.save))
        connection.close()  # Like a worker, begin the next attempt on a new connection.
    assert [find(strategy, order).order for order in orders] == orders
    assert (ledger.rejected, strategy.queue().dead_letters.newest()) == ({}, [])
    assert len(workers(strategy)) == 1, "however often it is tried"
    assert work(strategy, ledger) == 3
    ledger.assert_law(a=(0, 3), b=(3, 0))


@pytest.mark.parametrize("statement", list(SURROUNDINGS.values())[:2], ids=list(SURROUNDINGS)[:2])
def test_blaming_the_orders_rejects_them_all(
    strategy: LuaQueue, ledger: Ledger, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: if all errors except outages count against their order, the shop's own faults reject all."""
    excused = (OperationalError, InterfaceError)
    monkeypatch.setattr(lua_queue, "_would_fail_for_any", lambda error: isinstance(error, excused))
    put(strategy, *[("a", 1)] * 3)
    assert work(strategy, ledger, after(partial(execute, statement), ledger.save)) == 3
    assert len(ledger.rejected) == 3


@pytest.mark.parametrize(
    "statement", ["SELECT 'x'::int", "INSERT INTO tests_sold SELECT gen_random_uuid(), 'a', 2147483648"]
)
def test_bad_values_are_the_orders_own(strategy: LuaQueue, ledger: Ledger, statement: str) -> None:
    (order,) = put(strategy, ("a", 1))
    assert work(strategy, ledger, after(partial(execute, statement), ledger.save)) == 1
    assert set(ledger.rejected) == {order.id}
    assert len(strategy.queue().dead_letters.newest()) == 1
    ledger.assert_law(a=(3, 0), b=(3, 0))


@pytest.mark.parametrize("shift", [0, math.inf], ids=["", "without an end of the shift"])
def test_a_shift_ends_and_wakes_another_worker(
    strategy: LuaQueue, ledger: Ledger, woken: list[Any], shift: float
) -> None:
    put(strategy, ("a", 1))
    to_come = [("a", 1), ("b", 1)]

    def save(orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        if to_come:
            elsewhere(partial(put, strategy, to_come.pop()))
        return ledger.save(orders)

    worked = strategy.work(save, ledger.reject, ledger.saved, shift=shift)
    assert (worked, len(strategy.queue()), len(woken)) == ((1, 1, 2) if shift == 0 else (3, 0, 1))
    assert workers(strategy) == set()
    while work(strategy, ledger, save):
        pass
    ledger.assert_law(a=(1, 2), b=(2, 1))


def test_four_workers_save_each_order_once(strategy: LuaQueue, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lua_queue, "BATCH", 10)  # Leave work for all four workers.
    stock.deliver("a", 197)
    strategy.preheat(["a"], ledger.saved)
    put(strategy, *[("a", 1)] * 200)
    answers = at_once(*[partial(work, strategy, ledger)] * 4)
    assert all(isinstance(answer, int) for answer in answers), answers
    assert sum(map(int, answers)) == 200
    assert_at_rest(strategy)
    ledger.assert_law(a=(0, 200), b=(3, 0))


def change_reservation(strategy: LuaQueue, order: OrderRequest, **fields: Any) -> dict[str, Any]:
    reservation = {**json.loads(redis_of(strategy).hget(RESERVATIONS, str(order.id))), **fields}
    redis_of(strategy).hset(RESERVATIONS, str(order.id), json.dumps(reservation))
    return reservation


def replace_entry(strategy: LuaQueue, order: OrderRequest, fields: dict[str | bytes, str | bytes]) -> str:
    """Replace an order's queue entry, and return the id of the new entry."""
    redis_of(strategy).xdel(STREAM, change_reservation(strategy, order)["entry"])
    entry: str = redis_of(strategy).xadd(STREAM, fields).decode()
    change_reservation(strategy, order, entry=entry)
    return entry


@pytest.mark.parametrize("raw", ["{", "{}", b"\xff", *slow("1", "[]", '{"id": "1"}')])
@pytest.mark.parametrize("says_id", [True, False])
def test_an_unreadable_entry_becomes_a_dead_letter(
    strategy: LuaQueue, ledger: Ledger, raw: str | bytes, says_id: bool
) -> None:
    (order,) = put(strategy, ("a", 2), key="mine", limit=2)
    replace_entry(strategy, order, {"id": str(order.id) if says_id else "none", "request": raw})
    assert find(strategy, order).order.items == order.items  # type: ignore[union-attr]
    (other,) = put(strategy, ("b", 1))
    assert work(strategy, ledger) == 2
    reason = "ValueError: An entry cannot be read."
    assert (ledger.orders(), ledger.rejected) == ([other.id], {order.id: reason})
    shown = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    assert [each[1:3] for each in strategy.queue().dead_letters.newest()] == [(str(order.id), shown)]
    assert (find(strategy, order).reason, find(strategy, order).customer) == (reason, order.customer)
    assert_at_rest(strategy)
    ledger.assert_law(a=(3, 0), b=(2, 1))
    with pytest.raises(Duplicate) as refused:
        put(strategy, ("a", 2), key="mine", limit=2)
    assert refused.value.existing == order.id, "a rejected order keeps its key"
    put(strategy, ("a", 2), key="another", limit=2)


@pytest.mark.parametrize(
    "nonsense",
    [{"key": None}, {"hash": None}, {"buyer": 7}, {"buyer": None}, {"buyer": ["x"]}, {"at": 1e99}, {"place": "first"}],
    ids=str,
)
def test_an_unreadable_entry_and_reservation(strategy: LuaQueue, ledger: Ledger, nonsense: dict[str, Any]) -> None:
    (order,) = put(strategy, ("a", 1))
    replace_entry(strategy, order, {"id": str(order.id), "request": "{"})
    entry = change_reservation(strategy, order, **nonsense)["entry"]
    assert (find(strategy, order).order is not None, find(strategy, order).place) == ("place" in nonsense, 1)
    (other,) = put(strategy, ("b", 1))
    assert work(strategy, ledger) == 2
    assert ledger.orders() == [other.id]
    assert [each[1] for each in strategy.queue().dead_letters.newest()] == [str(order.id)]
    assert not strategy.queue().has(entry)
    assert strategy.counters().give_back(order.id, order.skus) or "place" in nonsense, (
        "reconciliation ends the reservation"
    )
    assert_at_rest(strategy)
    ledger.assert_law(a=(3, 0), b=(2, 1))


@pytest.mark.parametrize("encoded", [b"{", b"1", b'"x"', b'{"items": 1}', *slow(b"null", b"[]", b"\xff")])
@pytest.mark.parametrize("whose", ["of the unreadable entry", "of another order", "of a readable entry"])
def test_a_reservation_that_is_not_json(strategy: LuaQueue, ledger: Ledger, whose: str, encoded: bytes) -> None:
    (order,) = put(strategy, ("a", 1))
    if whose != "of a readable entry":
        order_id = str(order.id) if whose == "of the unreadable entry" else "none"
        replace_entry(strategy, order, {"id": order_id, "request": "{"})
    redis_of(strategy).hset(RESERVATIONS, str(order.id) if whose != "of another order" else str(uuid4()), encoded)
    others = put(strategy, *[("b", 1)] * 3)
    assert work(strategy, ledger) == 4
    saved = [order.id] if whose == "of a readable entry" else []
    assert sorted(ledger.orders()) == sorted([*saved, *(other.id for other in others)])
    assert len(strategy.queue().dead_letters.newest()) == 1 - len(saved)
    assert len(strategy.queue()) == 0
    # A reservation without a readable entry keeps its units until an operator deletes it.
    redis_of(strategy).delete(RESERVATIONS)
    strategy.counters().recount()
    registry.get("lua").refresh(["a", "b"], ledger.saved)
    ledger.assert_law(a=(3 - len(saved), len(saved)), b=(0, 3))


@pytest.mark.parametrize(
    "fields",
    [
        {"place": "first"},
        {"place": None, "buyer": 7},
        {"buyer": ["x"]},
        {"items": [["a", 0.5, 0, "9.90", "A"]]},
        {"items": [["a", "1", 0, "9.90", "A"]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("sold", [True, False], ids=["sold", "refused"])
def test_a_reservation_with_wrong_values(
    strategy: LuaQueue, ledger: Ledger, fields: dict[str, Any], sold: bool
) -> None:
    (order,) = put(strategy, ("a", 1))
    change_reservation(strategy, order, **fields)
    (other,) = put(strategy, ("b", 1))
    assert work(strategy, ledger, ledger.refuse({} if sold else {order.id: OVER_LIMIT})) == 2
    assert set(ledger.orders()) == ({order.id, other.id} if sold else {other.id})
    assert len(strategy.queue()) == 0


def test_an_unknown_entry_and_a_reservation_under_no_order_id(strategy: LuaQueue, ledger: Ledger) -> None:
    (order,) = put(strategy, ("a", 1))
    entry = replace_entry(strategy, order, {"what": "ever"})
    redis_of(strategy).hset(RESERVATIONS, "nobody", redis_of(strategy).hget(RESERVATIONS, str(order.id)))
    redis_of(strategy).hdel(RESERVATIONS, str(order.id))
    (other,) = put(strategy, ("b", 1))
    assert work(strategy, ledger) == 2
    assert ledger.orders() == [other.id]
    assert [each[1:3] for each in strategy.queue().dead_letters.newest()] == [(entry, "")]
    assert len(strategy.queue()) == 0


def test_unreadable_bought_units_are_logged(strategy: LuaQueue, caplog: pytest.LogCaptureFixture) -> None:
    put(strategy, ("a", 2), customer=7)
    redis_of(strategy).hset(bought_key("a"), mapping={"x": 1, "1:8": "many"})
    assert strategy.queue().bought.of("a") == {(1, 7): 2}
    assert len(caplog.messages) == 2


def test_an_order_finished_between_the_reads(
    strategy: LuaQueue, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (order,) = put(strategy, ("a", 1))
    read = Queue._reservation

    def late(queue: Queue, order_id: UUID) -> dict[str, Any]:
        fields = read(queue, order_id)
        work(strategy, ledger, ledger.refuse({order.id: OVER_LIMIT}))
        return fields

    with monkeypatch.context() as between:
        between.setattr(Queue, "_reservation", late)
        assert find(strategy, order).reason == "a: at most 1 per customer, 1 taken already"


def test_an_order_without_a_reservation_is_saved(
    strategy: LuaQueue, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    orders = put(strategy, ("a", 1), ("b", 1))
    redis_of(strategy).hdel(RESERVATIONS, str(orders[0].id))
    assert work(strategy, ledger) == 2
    assert sorted(ledger.orders()) == sorted(order.id for order in orders)
    assert [record.args for record in caplog.records] == [(orders[0].id,)]


@pytest.mark.parametrize("since", ["bought elsewhere", "unloaded"])
def test_uncounted_units_are_not_subtracted(strategy: LuaQueue, ledger: Ledger, since: str) -> None:
    if since == "unloaded":
        put(strategy, ("a", 1))
        work(strategy, ledger)
        strategy.unload(["a", "b"])
        assert redis_of(strategy).keys("{stock}:[bc]*") == []
    strategy.units_returned([ReturnedUnits(1, 1, "a", 1)], ledger.saved)
    assert redis_of(strategy).keys("{stock}:bought:*") == []


def test_a_trace_travels_in_a_field_that_the_previous_version_does_not_read(redis: Redis) -> None:
    preheated("lua-queue", {"a": 5})
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    queue, order, traced = registry.queue(), new_request(("a", 1)), new_request(("a", 1))
    queue.enqueue(order)
    queue.enqueue(traced, trace)
    (_, without), (_, fields) = redis.xrange(STREAM)
    assert without == {b"id": str(order.id).encode(), b"request": encode(order).encode()}
    assert fields == {b"id": str(traced.id).encode(), b"request": encode(traced).encode(), b"trace": trace.encode()}
    assert trace.encode() not in (redis.hget(RESERVATIONS, str(traced.id)) or b"")
    entries = queue.read("a worker", 5)
    assert [(entry.order, entry.trace) for entry in entries] == [(order, ""), (traced, trace)]
    assert [entry.trace_id for entry in entries] == ["", "0af7651916cd43dd8448eb211c80319c"]
