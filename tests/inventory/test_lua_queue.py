"""`lua-queue`: what Redis has accepted is saved once, whoever dies meanwhile, or refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from django.db import Error, InterfaceError, OperationalError, connection
from redis import Redis

from inventory import stock
from inventory.counters.whole import NOTES, UNITS, Counters
from inventory.errors import Duplicate, OverLimit, Refusal, SoldOut, StockNotLoaded
from inventory.queue.stream import GROUP, STREAM, WOKEN, Queue, QueueEntry, bought_key
from inventory.requests import OrderRequest, Placement, Returned, Save
from inventory.strategies import lua_queue, registry
from inventory.strategies.base import Strategy
from inventory.strategies.lua_queue import LuaQueue, queued
from tests.factories import at_once, elsewhere, new_request, preheated, tally
from tests.inventory.conformance import StrategyConformance
from tests.inventory.conftest import Ledger
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


class Followed(LuaQueue):
    """Every order is followed to its end: it is placed, worked off, and answered with what has become of it."""

    ledger: Ledger

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        super()._place(order, save)
        self.work(save, self.ledger.reject, self.ledger.saved)
        wait_for(lambda: (waiting := self.queue().get(order.id)) is None or waiting.request is None)
        if order.id in self.ledger.rejected:
            raise SoldOut(order.items[0].sku, wanted=0, left=0)
        return Placement.COMMITTED


class TestFollowed(StrategyConformance):
    """The properties of every strategy. Those that speak of the answer before the save are below, in other words."""

    test_save_runs_in_the_transaction_that_takes_the_stock = None  # type: ignore[assignment]
    test_what_save_refuses_is_not_taken = None  # type: ignore[assignment]
    test_when_save_fails_nothing_is_taken = None  # type: ignore[assignment]
    test_when_the_connection_dies_in_save_nothing_is_taken = None  # type: ignore[assignment]
    test_when_every_buyer_has_read_before_any_writes_still_only_one_is_sold = None  # type: ignore[assignment]

    @pytest.fixture
    def strategy(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Strategy:
        strategy = Followed(registry.counters, registry.queue)
        monkeypatch.setattr(strategy, "ledger", ledger, raising=False)
        # In the shop `lua` sees to the counters of both.
        monkeypatch.setattr(Followed, "refresh", registry.get("lua").refresh)
        monkeypatch.setattr(Followed, "given_back", registry.get("lua").given_back)
        return strategy


@pytest.fixture
def strategy(ledger: Ledger) -> LuaQueue:
    """`lua-queue`, with three units of `a` and of `b`."""
    strategy = preheated("lua-queue", {"a": 3, "b": 3})
    assert isinstance(strategy, LuaQueue)
    return strategy


@pytest.fixture
def queue(redis: Redis) -> Queue:
    return registry.queue()


def work(strategy: LuaQueue, ledger: Ledger) -> int:
    return strategy.work(ledger.save, ledger.reject, ledger.saved)


def assert_at_rest(redis: Redis) -> None:
    """Nothing is queued, nothing is reserved, nothing is noted."""
    assert [redis.exists(key) for key in (NOTES, UNITS, WOKEN)] == [0, 0, 0]
    assert redis.xlen(STREAM) == 0


# Placing


def test_an_order_is_queued_with_its_stock_and_saved_by_a_worker(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, counters: Counters, redis: Redis
) -> None:
    request = new_request(("a", 2), ("b", 1), limit=2)
    assert strategy.place(request, ledger.save) == Placement(1)
    assert (counters.left(["a", "b"]), counters.reserved()) == ({"a": 1, "b": 2}, {"a": 2, "b": 1})
    assert ledger.orders() == []
    waiting = queue.get(request.id)
    assert waiting is not None
    assert (waiting.request, waiting.place) == (request, 1)

    assert work(strategy, ledger) == 1

    assert ledger.orders() == [request.id]
    assert queue.get(request.id) is None
    assert_at_rest(redis)
    ledger.assert_law(a=(1, 2), b=(2, 1))


def test_the_place_in_the_queue_is_counted_from_the_last_that_left(
    strategy: LuaQueue, ledger: Ledger, queue: Queue
) -> None:
    requests = [new_request(("a", 1)) for _ in range(3)]
    assert [strategy.place(request, ledger.save) for request in requests] == [Placement(1), Placement(2), Placement(3)]
    assert strategy.place(requests[1], ledger.save) == Placement(2), "the answer was lost, and the script is sent again"
    assert [queue.get(request.id).place for request in requests] == [1, 2, 3]  # type: ignore[union-attr]
    work(strategy, ledger)
    assert strategy.place(requests[1], ledger.save) == Placement(1), "it is saved by now"
    late = new_request(("b", 1))
    assert strategy.place(late, ledger.save) == Placement(1)
    assert queue.get(late.id).place == 1  # type: ignore[union-attr]


def test_the_limit_holds_in_redis_and_what_came_back_may_be_bought_again(strategy: LuaQueue, ledger: Ledger) -> None:
    strategy.place(new_request(("a", 2), limit=2), ledger.save)
    with pytest.raises(OverLimit) as refused:
        strategy.place(new_request(("a", 1), limit=2), ledger.save)
    assert (refused.value.limit, refused.value.taken) == (2, 2)
    strategy.place(new_request(("a", 1), customer=2, limit=2), ledger.save)
    strategy.given_back([Returned(1, 1, "a", 2)], ledger.saved)
    stock.deliver("a", 2)
    strategy.preheat(["a"], ledger.saved)
    assert strategy.place(new_request(("a", 2), limit=2), ledger.save) == Placement(3)


def test_a_key_is_one_order_while_it_is_queued(strategy: LuaQueue, ledger: Ledger, counters: Counters) -> None:
    request = new_request(("a", 1), key="mine")
    strategy.place(request, ledger.save)
    strategy.place(request, ledger.save)  # an answer that was lost
    with pytest.raises(Duplicate) as refused:
        strategy.place(new_request(("a", 1), key="mine"), ledger.save)
    assert refused.value.existing == request.id
    strategy.place(new_request(("a", 1), key="mine", customer=2), ledger.save)
    assert counters.left(["a"]) == {"a": 1}
    assert strategy.waiting(1, "mine").request == request  # type: ignore[union-attr]
    assert strategy.waiting(3, "mine") is None


def test_16_clicks_at_once_with_one_key_are_queued_once(
    strategy: LuaQueue, ledger: Ledger, counters: Counters, queue: Queue
) -> None:
    requests = [new_request(("a", 1), key="mine") for _ in range(16)]
    answers = at_once(*[partial(strategy.place, request, ledger.save) for request in requests])
    assert tally(answers) == {"QUEUED": 1, "Duplicate": 15}
    assert (len(queue), counters.left(["a"])) == (1, {"a": 2})


def test_a_lost_counter_is_not_loaded_and_not_sold_out(strategy: LuaQueue, ledger: Ledger, counters: Counters) -> None:
    first = new_request(("a", 1))
    strategy.place(first, ledger.save)
    counters.unload(["a"])
    with pytest.raises(StockNotLoaded):
        strategy.place(new_request(("a", 1)), ledger.save)
    strategy.preheat(["a"], ledger.saved)
    assert counters.left(["a"]) == {"a": 2}  # less what is queued
    work(strategy, ledger)
    ledger.assert_law(a=(2, 1), b=(3, 0))


# Waking


@pytest.fixture
def woken() -> Iterator[list[Any]]:
    calls: list[Any] = []

    def wake(**said: Any) -> None:
        calls.append(said)

    queued.connect(wake, weak=False)
    yield calls
    queued.disconnect(wake)


def test_a_worker_is_woken_by_the_first_order_and_not_once_an_order(
    strategy: LuaQueue, ledger: Ledger, woken: list[Any]
) -> None:
    for sku in "aab":
        strategy.place(new_request((sku, 1)), ledger.save)
    assert len(woken) == 1
    work(strategy, ledger)
    strategy.place(new_request(("b", 1)), ledger.save)
    assert len(woken) == 2


def test_an_order_that_comes_when_the_worker_has_just_looked_is_not_forgotten(
    strategy: LuaQueue, ledger: Ledger, woken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the queue empty; before it says that it rests, an order comes, which wakes nobody."""
    rest = Queue.rest
    late = new_request(("a", 1))
    strategy.place(new_request(("b", 1)), ledger.save)

    def rest_late(queue: Queue) -> None:
        if not ledger.saved([late.id]):
            strategy.place(late, ledger.save)
        rest(queue)

    monkeypatch.setattr(Queue, "rest", rest_late)
    assert work(strategy, ledger) == 2
    assert len(woken) == 1
    assert ledger.saved([late.id])


def test_without_the_second_look_it_is(
    strategy: LuaQueue, ledger: Ledger, woken: list[Any], monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    """The negative control: who rests does not look again."""
    rest, read = Queue.rest, Queue.read
    rested: list[int] = []

    def rest_late(queue: Queue) -> None:
        strategy.place(new_request(("a", 1)), ledger.save)
        rest(queue)
        rested.append(1)

    def blind(queue: Queue, *rest: Any) -> list[QueueEntry]:
        return [] if rested else read(queue, *rest)

    strategy.place(new_request(("b", 1)), ledger.save)
    monkeypatch.setattr(Queue, "rest", rest_late)
    monkeypatch.setattr(Queue, "read", blind)
    assert work(strategy, ledger) == 1
    assert (len(woken), len(queue)) == (1, 1)


# Saving


def test_many_orders_are_saved_in_one_transaction(strategy: LuaQueue, ledger: Ledger) -> None:
    stock.deliver("a", 97)
    strategy.preheat(["a"], ledger.saved)
    batches: list[int] = []

    def count(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        batches.append(len(requests))
        return ledger.save(requests)

    for _ in range(100):
        strategy.place(new_request(("a", 1)), ledger.save)
    assert strategy.work(count, ledger.reject, ledger.saved) == 100
    assert batches == [100]
    ledger.assert_law(a=(0, 100), b=(3, 0))


def test_what_postgres_refuses_is_rejected_and_its_units_go_back(
    strategy: LuaQueue, ledger: Ledger, counters: Counters, redis: Redis
) -> None:
    request, another = new_request(("a", 1)), new_request(("a", 1))

    def refuse(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        ledger.save([each for each in requests if each.id != request.id])
        return {request.id: OverLimit("a", limit=1, taken=1)}

    strategy.place(request, ledger.save)
    strategy.place(another, ledger.save)
    strategy.work(refuse, ledger.reject, ledger.saved)
    assert ledger.rejected == {request.id: "a: at most 1 per customer, 1 taken already"}
    assert ledger.orders() == [another.id]
    assert counters.left(["a"]) == {"a": 2}
    assert_at_rest(redis)
    ledger.assert_law(a=(2, 1), b=(3, 0))


def test_a_request_whose_key_is_an_order_already_stands_for_that_order(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, redis: Redis
) -> None:
    request, existing = new_request(("a", 1)), uuid4()
    strategy.place(request, ledger.save)
    strategy.work(lambda requests: {request.id: Duplicate(existing)}, ledger.reject, ledger.saved)
    assert queue.get(request.id).instead == existing  # type: ignore[union-attr]
    assert ledger.rejected == {}
    assert_at_rest(redis)
    ledger.assert_law(a=(3, 0), b=(3, 0))


def test_a_counter_above_the_truth_is_corrected_and_nothing_is_oversold(
    strategy: LuaQueue, ledger: Ledger, counters: Counters
) -> None:
    """Redis has come back older than the truth."""
    counters.load("a", 5, (), make=False)
    requests = [new_request(("a", 1)) for _ in range(5)]
    for request in requests:
        strategy.place(request, ledger.save)
    work(strategy, ledger)
    assert ledger.orders() == [request.id for request in requests[:3]]
    assert set(ledger.rejected) == {request.id for request in requests[3:]}
    ledger.assert_law(a=(0, 3), b=(3, 0))


# Workers that die


class Dies(Exception):
    """The worker's process ends here."""


def test_what_a_dead_worker_has_read_is_taken_over_and_logged(
    strategy: LuaQueue, ledger: Ledger, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    strategy.place(new_request(("a", 1)), ledger.save)
    dead, heir = Queue(redis), LuaQueue(registry.counters, lambda: Queue(redis, dead=0))
    assert len(dead.read("dead", 10)) == 1
    assert work(strategy, ledger) == 0
    assert caplog.messages == []
    assert work(heir, ledger) == 1
    assert caplog.messages == ["Queued orders taken over from a worker that did not finish them: 1."]
    assert_at_rest(redis)
    ledger.assert_law(a=(2, 1), b=(3, 0))


def test_what_a_dead_worker_has_committed_is_not_sold_twice(
    strategy: LuaQueue, ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between its commit and its word to Redis."""
    request = new_request(("a", 1))
    strategy.place(request, ledger.save)

    def die(*rest: Any, **more: Any) -> None:
        raise Dies

    with monkeypatch.context() as dying:
        dying.setattr(Queue, "done", die)
        with pytest.raises(Dies):
            work(strategy, ledger)
    assert ledger.orders() == [request.id]

    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        return {request.id: Duplicate(request.id)}  # as the unique key tells

    heir = LuaQueue(registry.counters, lambda: Queue(redis, dead=0))
    assert heir.work(save, ledger.reject, ledger.saved) == 1
    assert_at_rest(redis)
    ledger.assert_law(a=(2, 1), b=(3, 0))


@pytest.mark.parametrize("looks", [True, False], ids=["", "without the look at what is an order"])
def test_what_a_dead_worker_has_committed_is_sold_also_when_nothing_is_left(
    strategy: LuaQueue,
    ledger: Ledger,
    counters: Counters,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    looks: bool,
) -> None:
    """Its customer has an order for all of `a`: whoever takes the entry over must not think that it came too late."""
    request = new_request(("a", 3), ("b", 1))
    strategy.place(request, ledger.save)

    def die(*rest: Any, **more: Any) -> None:
        raise Dies

    with monkeypatch.context() as dying:
        dying.setattr(Queue, "done", die)
        with pytest.raises(Dies):
            work(strategy, ledger)
    assert ledger.orders() == [request.id]

    heir = LuaQueue(registry.counters, lambda: Queue(redis, dead=0))
    asked: list[int] = []

    def saved(requests: Collection[UUID]) -> set[UUID]:
        asked.append(1)
        return ledger.saved(requests) if looks or len(asked) > 1 else set()

    assert heir.work(ledger.save, ledger.reject, saved) == 1
    assert (request.id in ledger.rejected) is not looks
    # It is sold all the same, to Redis too.
    assert heir.queue().bought("a") == {(request.sale, request.customer): 3}
    assert_at_rest(redis)
    ledger.assert_law(a=(0, 3), b=(2, 1))


def test_a_worker_that_died_with_nothing_left_to_do_is_forgotten_and_one_that_has_is_not(
    strategy: LuaQueue, ledger: Ledger, redis: Redis
) -> None:
    strategy.place(new_request(("a", 1)), ledger.save)
    Queue(redis).read("dead with an order", 10)
    Queue(redis).read("dead", 10)
    strategy.place(new_request(("a", 1)), ledger.save)

    def workers() -> set[str]:
        return {worker["name"].decode() for worker in redis.xinfo_consumers(STREAM, GROUP)}

    assert work(strategy, ledger) == 1
    assert workers() == {"dead", "dead with an order"}  # they may be alive
    Queue(redis, dead=0).leave("nobody")
    assert workers() == {"dead with an order"}
    assert work(LuaQueue(registry.counters, lambda: Queue(redis, dead=0)), ledger) == 1
    assert workers() == set()
    ledger.assert_law(a=(1, 2), b=(3, 0))


def test_a_worker_that_leaves_with_something_left_to_do_does_not_take_it_along(
    strategy: LuaQueue, ledger: Ledger, redis: Redis
) -> None:
    strategy.place(new_request(("a", 1)), ledger.save)
    queue = Queue(redis, dead=0)
    assert len(queue.read("w", 10)) == 1
    queue.leave("w")
    assert work(LuaQueue(registry.counters, lambda: queue), ledger) == 1
    assert redis.xinfo_consumers(STREAM, GROUP) == []
    ledger.assert_law(a=(2, 1), b=(3, 0))


def test_without_postgres_everything_stays_queued(strategy: LuaQueue, ledger: Ledger, queue: Queue) -> None:
    request = new_request(("a", 1))
    strategy.place(request, ledger.save)

    def die(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return {}

    with pytest.raises(OperationalError):
        strategy.work(die, ledger.reject, ledger.saved)
    connection.close()
    assert queue.get(request.id).request == request  # type: ignore[union-attr]
    # It was given back: nobody has to wait until the worker seems dead.
    assert work(strategy, ledger) == 1
    ledger.assert_law(a=(2, 1), b=(3, 0))


def fails_with(statement: str, ledger: Ledger) -> Save:
    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
        return ledger.save(requests)

    return save


SURROUNDINGS = {
    "a server that only reads": "SET TRANSACTION READ ONLY; UPDATE inventory_stockitem SET received = received",
    "no such column": "SELECT no_such_column FROM inventory_stockitem",
    "no such table": "SELECT FROM no_such_table",
    "a column that is new": "INSERT INTO inventory_stockitem (sku) VALUES ('new')",
    "a sequence that is behind": "INSERT INTO inventory_stockitem SELECT * FROM inventory_stockitem",
    "no such statement": "EXECUTE _pg3_0",
    "too slow": "SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)",
}


@pytest.mark.parametrize("statement", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_when_nothing_can_be_saved_everything_stays_queued(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, statement: str
) -> None:
    requests = [new_request(("a", 1)) for _ in range(3)]
    for request in requests:
        strategy.place(request, ledger.save)
    for _ in range(3):
        with pytest.raises(Error):
            strategy.work(fails_with(statement, ledger), ledger.reject, ledger.saved)
    assert [queue.get(request.id).request for request in requests] == requests  # type: ignore[union-attr]
    assert (ledger.rejected, queue.aside()) == ({}, [])
    assert len(queue.client.xinfo_consumers(STREAM, GROUP)) == 1, "however often it is tried"
    assert work(strategy, ledger) == 3, "it was given back: nobody has to wait until the worker seems dead"
    ledger.assert_law(a=(0, 3), b=(3, 0))


@pytest.mark.parametrize("statement", list(SURROUNDINGS.values())[:-1], ids=list(SURROUNDINGS)[:-1])
def test_who_blames_the_requests_for_it_rejects_them_all(
    strategy: LuaQueue, ledger: Ledger, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: only a server that does not answer is excused."""
    monkeypatch.setattr(
        lua_queue, "_would_fail_for_any", lambda error: isinstance(error, (OperationalError, InterfaceError))
    )
    for _ in range(3):
        strategy.place(new_request(("a", 1)), ledger.save)
    assert strategy.work(fails_with(statement, ledger), ledger.reject, ledger.saved) == 3
    assert len(ledger.rejected) == 3


@pytest.mark.parametrize(
    "statement",
    ["SELECT 'x'::int", "INSERT INTO tests_sold SELECT gen_random_uuid(), 'a', 2147483648"],
)
def test_what_postgres_says_of_the_values_is_the_requests_own(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, statement: str
) -> None:
    request = new_request(("a", 1))
    strategy.place(request, ledger.save)
    assert strategy.work(fails_with(statement, ledger), ledger.reject, ledger.saved) == 1
    assert set(ledger.rejected) == {request.id}
    assert len(queue.aside()) == 1
    ledger.assert_law(a=(3, 0), b=(3, 0))


@pytest.mark.parametrize("shift", [0, math.inf], ids=["", "without an end of the shift"])
def test_a_worker_to_whom_new_orders_keep_coming_makes_room_and_has_another_woken(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, woken: list[Any], shift: float
) -> None:
    strategy.place(new_request(("a", 1)), ledger.save)
    to_come = [new_request(("a", 1)), new_request(("b", 1))]

    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        if to_come:
            elsewhere(partial(strategy.place, to_come.pop(), ledger.save))
        return ledger.save(requests)

    worked = strategy.work(save, ledger.reject, ledger.saved, shift=shift)
    assert (worked, len(queue), len(woken)) == ((1, 1, 2) if shift == 0 else (3, 0, 1))
    assert queue.client.xinfo_consumers(STREAM, GROUP) == []
    while strategy.work(save, ledger.reject, ledger.saved):
        pass
    ledger.assert_law(a=(1, 2), b=(2, 1))


def test_four_workers_at_once_save_each_order_once(
    strategy: LuaQueue, ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua_queue, "BATCH", 10)  # so that there is something for each of them
    stock.deliver("a", 197)
    strategy.preheat(["a"], ledger.saved)
    for _ in range(200):
        strategy.place(new_request(("a", 1)), ledger.save)
    answers = at_once(*[partial(work, strategy, ledger)] * 4)
    assert all(isinstance(answer, int) for answer in answers), answers
    assert sum(map(int, answers)) == 200
    assert_at_rest(redis)
    ledger.assert_law(a=(0, 200), b=(3, 0))


# What cannot be saved


def test_an_order_that_cannot_be_saved_is_set_aside_and_stops_nobody(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, redis: Redis
) -> None:
    poison, others = new_request(("a", 1)), [new_request(("a", 1)), new_request(("b", 1))]

    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        if poison in requests:
            raise ValueError("no such thing")
        return ledger.save(requests)

    for request in (others[0], poison, others[1]):
        strategy.place(request, ledger.save)
    strategy.work(save, ledger.reject, ledger.saved)
    assert set(ledger.orders()) == {request.id for request in others}
    assert ledger.rejected == {poison.id: "ValueError: no such thing"}
    assert [said[1::2] for said in queue.aside()] == [(str(poison.id), "ValueError: no such thing")]
    assert queue.get(poison.id).reason == "ValueError: no such thing"  # type: ignore[union-attr]
    assert_at_rest(redis)
    ledger.assert_law(a=(2, 1), b=(2, 1))


def spoil(redis: Redis, request: OrderRequest, said: dict[str | bytes, str | bytes]) -> str:
    """Let the entry of a request say something else; returns its number."""
    note = orjson.loads(redis.hget(NOTES, str(request.id)))
    redis.xdel(STREAM, note["entry"])
    note["entry"] = redis.xadd(STREAM, said).decode()
    redis.hset(NOTES, str(request.id), orjson.dumps(note))
    return str(note["entry"])


@pytest.mark.parametrize("raw", ["{", "{}", "1", "[]", b"\xff", '{"id": "1"}'])
@pytest.mark.parametrize("says_id", [True, False])
def test_an_entry_that_cannot_be_read_is_rejected_and_set_aside_and_its_units_are_free(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, redis: Redis, raw: str | bytes, says_id: bool
) -> None:
    request, other = new_request(("a", 2), key="mine", limit=2), new_request(("b", 1))
    strategy.place(request, ledger.save)
    spoil(redis, request, {"id": str(request.id) if says_id else "none", "request": raw})
    assert queue.get(request.id).request.items == request.items  # type: ignore[union-attr]
    strategy.place(other, ledger.save)

    assert work(strategy, ledger) == 2

    assert ledger.orders() == [other.id]
    assert ledger.rejected == {request.id: "ValueError: An entry cannot be read."}
    legible = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    assert [said[1:3] for said in queue.aside()] == [(str(request.id), legible)]
    waiting = queue.get(request.id)
    assert waiting is not None
    assert (waiting.reason, waiting.customer) == ("ValueError: An entry cannot be read.", request.customer)
    assert_at_rest(redis)
    ledger.assert_law(a=(3, 0), b=(2, 1))
    with pytest.raises(Duplicate) as refused:
        strategy.place(new_request(("a", 2), key="mine", limit=2), ledger.save)
    assert refused.value.existing == request.id, "the key stands for what is rejected"
    strategy.place(new_request(("a", 2), key="another", limit=2), ledger.save)


def test_an_entry_that_is_nobodys_is_set_aside_by_its_number(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, redis: Redis
) -> None:
    number = redis.xadd(STREAM, {"what": "ever"}).decode()
    request = new_request(("a", 1))
    strategy.place(request, ledger.save)
    assert work(strategy, ledger) == 2
    assert (ledger.orders(), ledger.rejected) == ([request.id], {})
    assert [said[1:3] for said in queue.aside()] == [(number, "")]
    assert_at_rest(redis)
    ledger.assert_law(a=(2, 1), b=(3, 0))


def test_closing_a_sale_forgets_who_bought_what(strategy: LuaQueue, ledger: Ledger, redis: Redis) -> None:
    strategy.place(new_request(("a", 1)), ledger.save)
    work(strategy, ledger)
    strategy.unload(["a", "b"])
    assert set(redis.keys("{stock}:[bc]*")) == set()


@pytest.mark.parametrize(
    "nonsense",
    [{"key": None}, {"hash": None}, {"buyer": 7}, {"buyer": None}, {"buyer": ["x"]}, {"at": 1e99}, {"place": "first"}],
    ids=str,
)
def test_an_entry_and_a_note_that_both_cannot_be_read_stop_nobody(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, counters: Counters, redis: Redis, nonsense: dict[str, Any]
) -> None:
    request, other = new_request(("a", 1)), new_request(("b", 1))
    strategy.place(request, ledger.save)
    spoil(redis, request, {"id": str(request.id), "request": "{"})
    note = orjson.loads(redis.hget(NOTES, str(request.id)))
    redis.hset(NOTES, str(request.id), orjson.dumps({**note, **nonsense}))
    waiting = queue.get(request.id)
    assert waiting is not None
    assert (waiting.request is not None, waiting.place) == ("place" in nonsense, 1)
    strategy.place(other, ledger.save)
    assert work(strategy, ledger) == 2
    assert ledger.orders() == [other.id]
    assert [said[1] for said in queue.aside()] == [str(request.id)]
    # What is noted goes back when nobody has come for it.
    assert not queue.has(note["entry"])
    assert counters.give_back(request.id, request.skus) or "place" in nonsense
    assert_at_rest(redis)
    ledger.assert_law(a=(3, 0), b=(2, 1))


@pytest.mark.parametrize("said", [b"{", b"1", b"null", b'"x"', b"[]", b'{"items": 1}', b"\xff"])
@pytest.mark.parametrize("whose", ["the entry's", "somebody's", "the request's"])
def test_a_note_that_is_not_json_stops_nobody(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, counters: Counters, redis: Redis, whose: str, said: bytes
) -> None:
    request, others = new_request(("a", 1)), [new_request(("b", 1)) for _ in range(3)]
    strategy.place(request, ledger.save)
    if whose != "the request's":  # whose entry can be read
        spoil(redis, request, {"id": str(request.id) if whose == "the entry's" else "none", "request": "{"})
    redis.hset(NOTES, str(request.id) if whose != "somebody's" else str(uuid4()), said)
    for other in others:
        strategy.place(other, ledger.save)

    assert work(strategy, ledger) == 4

    saved = [request.id] if whose == "the request's" else []
    assert sorted(ledger.orders()) == sorted([*saved, *(other.id for other in others)])
    assert len(queue.aside()) == 1 - len(saved)
    assert len(queue) == 0
    # The note stays, and what it had stays reserved, until somebody has looked at it.
    redis.delete(NOTES)
    counters.recount()
    registry.get("lua").refresh(["a", "b"], ledger.saved)
    ledger.assert_law(a=(3 - len(saved), len(saved)), b=(0, 3))


@pytest.mark.parametrize(
    "said",
    [
        {"place": "first"},
        {"place": None, "buyer": 7},
        {"buyer": ["x"]},
        {"items": [["a", 0.5, 0, "9.90"]]},
        {"items": [["a", "1", 0, "9.90"]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("sold", [True, False], ids=["sold", "refused"])
def test_a_note_that_says_nonsense_legibly_stops_nobody(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, redis: Redis, said: dict[str, Any], sold: bool
) -> None:
    request, other = new_request(("a", 1)), new_request(("b", 1))
    strategy.place(request, ledger.save)
    note = orjson.loads(redis.hget(NOTES, str(request.id)))
    redis.hset(NOTES, str(request.id), orjson.dumps({**note, **said}))
    strategy.place(other, ledger.save)

    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        ledger.save([each for each in requests if sold or each.id != request.id])
        return {} if sold else {request.id: OverLimit("a", limit=1, taken=1)}

    assert strategy.work(save, ledger.reject, ledger.saved) == 2
    assert set(ledger.orders()) == ({request.id, other.id} if sold else {other.id})
    assert len(queue) == 0


def test_the_note_of_an_entry_that_cannot_be_read_may_be_under_no_requests_id(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, redis: Redis
) -> None:
    request, other = new_request(("a", 1)), new_request(("b", 1))
    strategy.place(request, ledger.save)
    entry = spoil(redis, request, {"request": "{"})
    redis.hset(NOTES, "nobody", redis.hget(NOTES, str(request.id)))
    redis.hdel(NOTES, str(request.id))
    strategy.place(other, ledger.save)
    assert work(strategy, ledger) == 2
    assert ledger.orders() == [other.id]
    assert [said[1] for said in queue.aside()] == [entry]


def test_a_count_of_what_was_bought_that_cannot_be_read_is_passed_over_and_logged(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    strategy.place(new_request(("a", 2), customer=7), ledger.save)
    redis.hset(bought_key("a"), mapping={"x": 1, "1:8": "many"})
    assert queue.bought("a") == {(1, 7): 2}
    assert len(caplog.messages) == 2


def test_an_order_that_leaves_the_queue_between_the_two_looks_at_it_has_an_outcome(
    strategy: LuaQueue, ledger: Ledger, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis still had its note when it was asked for its entry."""
    request = new_request(("a", 1))
    strategy.place(request, ledger.save)
    note = Queue._note

    def refuse(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        return {request.id: OverLimit("a", limit=1, taken=1)}

    def late(queue: Queue, of: UUID) -> dict[str, Any]:
        said = note(queue, of)
        strategy.work(refuse, ledger.reject, ledger.saved)
        return said

    with monkeypatch.context() as between:
        between.setattr(Queue, "_note", late)
        waiting = queue.get(request.id)
    assert waiting is not None
    assert waiting.reason == "a: at most 1 per customer, 1 taken already"


def test_an_order_that_redis_has_no_note_of_is_saved_and_said(
    strategy: LuaQueue, ledger: Ledger, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    request, noted = new_request(("a", 1)), new_request(("b", 1))
    strategy.place(request, ledger.save)
    strategy.place(noted, ledger.save)
    redis.hdel(NOTES, str(request.id))
    assert work(strategy, ledger) == 2
    assert sorted(ledger.orders()) == sorted([request.id, noted.id])
    assert [record.args for record in caplog.records] == [(request.id,)]


@pytest.mark.parametrize("since", ["bought elsewhere", "unloaded"])
def test_what_nobody_counts_as_bought_is_not_given_back_below_nothing(
    strategy: LuaQueue, ledger: Ledger, redis: Redis, since: str
) -> None:
    if since == "unloaded":
        strategy.place(new_request(("a", 1)), ledger.save)
        work(strategy, ledger)
        strategy.unload(["a"])
    strategy.given_back([Returned(1, 1, "a", 1)], ledger.saved)
    assert redis.keys("{stock}:bought:*") == []
