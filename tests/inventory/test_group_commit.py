"""`group-commit`: who waits together is saved together, and nobody waits for company or for somebody else's mistake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, connection, connections, transaction
from psycopg.errors import LockNotAvailable

from inventory import bulk, stock
from inventory.errors import Duplicate, OverLimit, Refusal, SoldOut
from inventory.models import StockItem, StockSegment
from inventory.requests import OrderRequest, Placement
from inventory.strategies import group_commit
from inventory.strategies.group_commit import GroupCommit
from tests.factories import new_request
from tests.inventory.conftest import Ledger
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


class Gate:
    """A Save that stops the first group until it is told to go on, and notes who is saved with whom."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.groups: list[list[UUID]] = []
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.refusals: dict[UUID, Refusal] = {}
        self.poison: set[UUID] = set()

    def save(self, requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        self.groups.append([request.id for request in requests])
        self.inside.set()
        assert self.go_on.wait(PATIENCE)
        if self.poison & {request.id for request in requests}:
            raise ValueError("a mistake of ours")
        refused = {request.id: self.refusals[request.id] for request in requests if request.id in self.refusals}
        if accepted := [request for request in requests if request.id not in refused]:
            self.ledger.save(accepted)
        return refused


@pytest.fixture
def gate(ledger: Ledger) -> Gate:
    return Gate(ledger)


@pytest.fixture
def strategy() -> GroupCommit:
    return GroupCommit()


@pytest.fixture
def place(strategy: GroupCommit, gate: Gate) -> Iterator[Callable[[OrderRequest], Future[Placement]]]:
    """Place a request in a thread of its own, and return once it waits or saves."""
    pool = ThreadPoolExecutor(32)

    def run(request: OrderRequest) -> Placement:
        try:
            return strategy.place(request, gate.save)
        finally:
            connections.close_all()

    def start(request: OrderRequest) -> Future[Placement]:
        before = strategy.batcher.pending()
        leads = not strategy.batcher._running
        future = pool.submit(run, request)
        if leads:
            assert gate.inside.wait(PATIENCE)
        else:
            wait_for(lambda: strategy.batcher.pending() > before, "the buyer to wait")
        return future

    yield start
    gate.go_on.set()
    pool.shutdown()


def test_who_waits_while_one_is_saved_is_saved_together(
    gate: Gate, place: Callable[[OrderRequest], Future[Placement]], ledger: Ledger
) -> None:
    stock.deliver("a", 20)
    requests = [new_request(("a", 1)) for _ in range(9)]
    answers = [place(request) for request in requests]
    gate.go_on.set()
    assert [answer.result(PATIENCE) for answer in answers] == [Placement.COMMITTED] * 9
    assert gate.groups == [[requests[0].id], [request.id for request in requests[1:]]]
    ledger.assert_law(a=(11, 9))


def test_nobody_waits_for_company(strategy: GroupCommit, ledger: Ledger) -> None:
    stock.deliver("a", 2)
    threads = threading.active_count()
    for _ in range(2):
        assert strategy.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    assert threading.active_count() == threads
    assert (strategy.batcher.pending(), strategy.batcher._running) == (0, False)


def test_when_the_stock_does_not_cover_all_the_first_to_come_are_served(
    gate: Gate, place: Callable[[OrderRequest], Future[Placement]], ledger: Ledger
) -> None:
    """A cart that is too large does not keep a smaller one behind it from what is left."""
    stock.deliver("a", 4)
    answers = [place(new_request(("a", quantity))) for quantity in (1, 2, 2, 1, 1)]
    gate.go_on.set()
    said = [answer.exception(PATIENCE) for answer in answers]
    assert [type(error).__name__ for error in said] == ["NoneType", "NoneType", "SoldOut", "NoneType", "SoldOut"]
    assert isinstance(said[2], SoldOut)
    assert (said[2].wanted, said[2].left) == (2, 0), "once the others of its group are served"
    ledger.assert_law(a=(0, 4))


@pytest.mark.parametrize("refusal", [Duplicate(uuid4()), OverLimit("a", limit=1, taken=1)], ids=["key", "limit"])
def test_what_one_was_refused_is_left_for_the_next(
    gate: Gate, place: Callable[[OrderRequest], Future[Placement]], ledger: Ledger, refusal: Refusal
) -> None:
    stock.deliver("a", 2)
    first, refused, last = (new_request(("a", 1)) for _ in range(3))
    gate.refusals[refused.id] = refusal
    answers = [place(request) for request in (first, refused, last)]
    gate.go_on.set()
    assert [answer.exception(PATIENCE) for answer in answers] == [None, refusal, None]
    ledger.assert_law(a=(0, 2))


def test_an_order_that_makes_the_transaction_fail_fails_alone(
    gate: Gate, place: Callable[[OrderRequest], Future[Placement]], ledger: Ledger
) -> None:
    stock.deliver("a", 9)
    requests = [new_request(("a", 1)) for _ in range(5)]
    gate.poison = {requests[2].id}
    answers = [place(request) for request in requests]
    gate.go_on.set()
    assert [type(answer.exception(PATIENCE)).__name__ for answer in answers] == [
        *["NoneType"] * 2,
        "ValueError",
        *["NoneType"] * 2,
    ]
    ledger.assert_law(a=(5, 4))


WAITS = {
    "for a lock": ("SET LOCAL lock_timeout = '50ms'", "SELECT FROM inventory_stockitem WHERE sku = 'held' FOR UPDATE"),
    "for too long": ("SET LOCAL statement_timeout = '50ms'", "SELECT pg_sleep(60)"),
    "in a circle": ("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$",),
}


@pytest.fixture
def held(ledger: Ledger) -> Iterator[None]:
    """Somebody has locked the row of `held`, and does not let go."""
    stock.deliver("held", 1)
    with ThreadPoolExecutor(1) as pool:
        there, over = threading.Event(), threading.Event()

        def hold() -> None:
            with transaction.atomic():
                stock.lock(["held"])
                there.set()
                assert over.wait(PATIENCE)
            connections.close_all()

        holding = pool.submit(hold)
        assert there.wait(PATIENCE)
        yield
        over.set()
        holding.result(PATIENCE)


@pytest.mark.parametrize("unknown", [False, True], ids=["is an answer", "is taken for none"])
@pytest.mark.parametrize("waits", WAITS)
def test_an_order_that_waits_in_vain_fails_alone(
    gate: Gate,
    place: Callable[[OrderRequest], Future[Placement]],
    ledger: Ledger,
    held: None,
    monkeypatch: pytest.MonkeyPatch,
    waits: str,
    unknown: bool,
) -> None:
    """The negative control: taken for no answer, the error of one is everybody's."""
    stock.deliver("a", 9)
    requests = [new_request(("a", 1)) for _ in range(5)]
    save = gate.save

    def wait(some: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        if requests[2] in some:
            with connection.cursor() as cursor:
                for statement in WAITS[waits]:
                    cursor.execute(statement)
        return save(some)

    monkeypatch.setattr(gate, "save", wait)
    if unknown:
        monkeypatch.setattr(group_commit, "_is_answer", lambda error: False)
    answers = [place(request) for request in requests]
    gate.go_on.set()
    failed = [isinstance(answer.exception(PATIENCE), OperationalError) for answer in answers]
    assert failed == ([False, *[True] * 4] if unknown else [False, False, True, False, False])
    ledger.assert_law(a=(8, 1) if unknown else (5, 4), held=(1, 0))


def test_those_who_are_tried_again_alone_wait_for_no_lock_for_long(
    gate: Gate,
    place: Callable[[OrderRequest], Future[Placement]],
    ledger: Ledger,
    held: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock.deliver("a", 9)
    first, *others = [new_request(("a", 1)) for _ in range(5)]
    save = gate.save

    def wait(some: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        if first not in some:
            with connection.cursor() as cursor:
                for statement in WAITS["for a lock"][len(some) == 1 :]:  # alone there is no limit of its own
                    cursor.execute(statement)
        return save(some)

    monkeypatch.setattr(gate, "save", wait)
    answers = [place(request) for request in (first, *others)]
    gate.go_on.set()
    said = [answer.exception(PATIENCE) for answer in answers]
    assert [type(error and error.__cause__) for error in said] == [type(None), *[LockNotAvailable] * 4]
    ledger.assert_law(a=(8, 1), held=(1, 0))


def test_the_limit_of_waiting_is_what_it_was_afterwards(db: None) -> None:
    def limit() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            return str(cursor.fetchone()[0])

    before = limit()
    with group_commit._in_a_hurry():
        assert limit() == "100ms"
    assert limit() == before != "100ms"


def test_without_an_answer_from_postgres_everybody_of_the_group_is_told_and_the_next_group_goes_on(
    gate: Gate, place: Callable[[OrderRequest], Future[Placement]], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock.deliver("a", 9)
    requests = [new_request(("a", 1)) for _ in range(3)]
    save = gate.save

    def die(requests_: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        refused = save(requests_)
        if requests[1] in requests_:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return refused

    monkeypatch.setattr(gate, "save", die)
    answers = [place(request) for request in requests]
    gate.go_on.set()
    assert [type(answer.exception(PATIENCE)) for answer in answers] == [type(None), OperationalError, OperationalError]
    late = place(new_request(("a", 1)))
    assert late.result(PATIENCE) is Placement.COMMITTED
    ledger.assert_law(a=(7, 2))


def test_who_leads_and_is_interrupted_leaves_nobody_waiting(
    gate: Gate, place: Callable[[OrderRequest], Future[Placement]], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock.deliver("a", 9)
    first, second, third = (new_request(("a", 1)) for _ in range(3))
    save = gate.save

    def stop(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        save(requests)
        if first in requests:
            raise KeyboardInterrupt
        return {}

    monkeypatch.setattr(gate, "save", stop)
    answers = [place(request) for request in (first, second, third)]
    gate.go_on.set()
    assert isinstance(answers[0].exception(PATIENCE), KeyboardInterrupt)
    assert [answer.result(PATIENCE) for answer in answers[1:]] == [Placement.COMMITTED] * 2
    assert StockItem.objects.get(sku="a").on_hand == 7


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ((1, 2), {1: "a is split up for another sale, or some came back just now."}),
        ((1, 1, 3), {1: "a is split up for another sale, or some came back just now.", 2: "a: 3 wanted, 2 left"}),
    ],
    ids=["enough for all", "too little for all"],
)
def test_what_is_split_up_is_neither_sold_nor_told_to_be_sold_out(
    ledger: Ledger, wanted: Sequence[int], told: Mapping[int, str]
) -> None:
    """The pool has one unit, and two are in a segment of the next sale."""
    stock.deliver("a", 3)
    StockItem.objects.update(on_hand=1)
    StockSegment.objects.create(item_id="a", number=0, on_hand=2)
    requests = [new_request(("a", units)) for units in wanted]

    refusals = bulk.commit(requests, ledger.save)

    assert {at: str(refusals[request.id]) for at, request in enumerate(requests) if request.id in refusals} == told
    assert stock.on_hand("a") == 2
