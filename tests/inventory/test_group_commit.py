"""`group-commit`: waiting orders share a transaction. No order waits for others to arrive, and one can fail alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import OperationalError, connections
from psycopg.errors import LockNotAvailable

from inventory import bulk, stock
from inventory.errors import Duplicate, OverLimit, Refusal, SoldOut
from inventory.models import StockItem, StockSegment
from inventory.requests import OrderRequest, Placement
from inventory.strategies import group_commit
from inventory.strategies.group_commit import GroupCommit
from inventory.strategies.locks import conninfo
from tests.factories import new_request
from tests.inventory.conftest import Ledger, after, execute, fetch
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


class Gate:
    """A `save` callback that calls `before` with each batch. It holds the first batch until `go_on` is set."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.batches: list[list[UUID]] = []
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.refusals: dict[UUID, Refusal] = {}
        self.before: Callable[[Sequence[OrderRequest]], object] = lambda orders: None

    def save(self, orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        self.before(orders)
        self.batches.append([order.id for order in orders])
        self.inside.set()
        assert self.go_on.wait(WAIT_TIMEOUT)
        return self.ledger.refuse(self.refusals)(orders)


@pytest.fixture
def gate(ledger: Ledger) -> Gate:
    return Gate(ledger)


Place = Callable[..., "list[BaseException | None]"]


@pytest.fixture
def strategy() -> GroupCommit:
    return GroupCommit()


@pytest.fixture
def place(strategy: GroupCommit, gate: Gate) -> Iterator[Place]:
    """Place orders in threads, one after the other; return the exception or None of each.

    The first order leads a batch, and the others wait.
    """
    pool = ThreadPoolExecutor(32)

    def run(order: OrderRequest) -> None:
        try:
            assert strategy.place(order, gate.save) is Placement.COMMITTED
        finally:
            connections.close_all()

    def start(order: OrderRequest) -> Future[None]:
        before, leads = strategy.batcher.pending(), not strategy.batcher._running
        future = pool.submit(run, order)
        if leads:
            assert gate.inside.wait(WAIT_TIMEOUT)
        else:
            wait_for(lambda: strategy.batcher.pending() > before, "the order to wait")
        return future

    def place(*orders: OrderRequest) -> list[BaseException | None]:
        futures = [start(order) for order in orders]
        gate.go_on.set()
        return [future.exception(WAIT_TIMEOUT) for future in futures]

    yield place
    gate.go_on.set()
    pool.shutdown()


def orders_of(*quantities: int) -> list[OrderRequest]:
    return [new_request(("a", quantity)) for quantity in quantities]


def test_waiting_orders_are_saved_together(gate: Gate, place: Place, ledger: Ledger) -> None:
    stock.deliver("a", 20)
    orders = orders_of(*[1] * 9)
    assert place(*orders) == [None] * 9
    assert gate.batches == [[orders[0].id], [order.id for order in orders[1:]]]
    ledger.assert_law(a=(11, 9))


def test_scarce_units_go_in_order_of_arrival(place: Place, ledger: Ledger) -> None:
    """Scarce units go to orders as they arrive. An order that is too large does not stop a smaller later order."""
    stock.deliver("a", 4)
    raised = place(*orders_of(1, 2, 2, 1, 1))
    assert [type(error) for error in raised] == [type(None), type(None), SoldOut, type(None), SoldOut]
    assert (raised[2].wanted, raised[2].left) == (2, 0), "after the others of its batch"
    ledger.assert_law(a=(0, 4))


def test_units_of_refused_orders_are_sold(gate: Gate, place: Place, ledger: Ledger) -> None:
    stock.deliver("a", 2)
    first, duplicate, over_limit, last = orders_of(1, 1, 1, 1)
    gate.refusals = {duplicate.id: Duplicate(uuid4()), over_limit.id: OverLimit("a", limit=1, taken=1)}
    assert place(first, duplicate, over_limit, last) == [None, *gate.refusals.values(), None]
    ledger.assert_law(a=(0, 2))


def test_a_failing_order_fails_alone(gate: Gate, place: Place, ledger: Ledger) -> None:
    stock.deliver("a", 9)
    orders, error = orders_of(*[1] * 5), ValueError("a bug in the shop")

    def fail(batch: Sequence[OrderRequest]) -> None:
        if orders[2] in batch:
            raise error

    gate.before = fail
    assert place(*orders) == [None, None, error, None, None]
    ledger.assert_law(a=(5, 4))


WAITS = {
    "for a lock": ("SET LOCAL lock_timeout = '50ms'", "SELECT FROM inventory_stockitem WHERE sku = 'held' FOR UPDATE"),
    "for too long": ("SET LOCAL statement_timeout = '50ms'", "SELECT pg_sleep(60)"),
    "in a deadlock": ("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$",),
}


@pytest.fixture
def held(ledger: Ledger) -> Iterator[None]:
    """Keep the stock row of `held` locked in another transaction."""
    stock.deliver("held", 1)
    with psycopg.connect(conninfo()) as other:
        other.execute("SELECT FROM inventory_stockitem WHERE sku = 'held' FOR UPDATE")
        yield


@pytest.mark.parametrize("unknown", [False, True], ids=["known to be rolled back", "taken for unknown"])
@pytest.mark.parametrize("waits", WAITS)
def test_an_order_that_times_out_fails_alone(
    gate: Gate, place: Place, ledger: Ledger, held: None, monkeypatch: pytest.MonkeyPatch, waits: str, unknown: bool
) -> None:
    """An order that times out fails alone. Negative control: if its error counts as unknown, its batch fails."""
    stock.deliver("a", 9)
    orders = orders_of(*[1] * 5)
    gate.before = lambda batch: orders[2] in batch and execute(*WAITS[waits])
    if unknown:
        monkeypatch.setattr(group_commit, "was_rolled_back", lambda error: False)
    failed = [isinstance(error, OperationalError) for error in place(*orders)]
    assert failed == ([False, *[True] * 4] if unknown else [False, False, True, False, False])
    ledger.assert_law(a=(8, 1) if unknown else (5, 4), held=(1, 0))


def test_retries_have_a_short_lock_timeout(gate: Gate, place: Place, ledger: Ledger, held: None) -> None:
    stock.deliver("a", 9)
    first, *others = orders_of(*[1] * 5)
    # The test sets no lock timeout for a single order, because the strategy must do so.
    gate.before = lambda batch: first not in batch and execute(*WAITS["for a lock"][len(batch) == 1 :])
    raised = place(first, *others)
    assert [type(error and error.__cause__) for error in raised] == [type(None), *[LockNotAvailable] * 4]
    ledger.assert_law(a=(8, 1), held=(1, 0))


def test_the_lock_timeout_ends_with_the_transaction(ledger: Ledger) -> None:
    """The lock timeout ends with the transaction, so that no other request on the connection inherits it."""
    timeout, during = partial(fetch, "SHOW lock_timeout"), []
    stock.deliver("a", 1)
    before = timeout()
    for orders in (orders_of(1), orders_of(1, 1)):
        bulk.commit(orders, after(lambda: during.extend(timeout()), ledger.save), lock_timeout=0.1)
        assert timeout() == before != ["100ms"]
    assert during == ["100ms"]


def test_a_lost_connection_fails_the_batch(gate: Gate, place: Place, ledger: Ledger) -> None:
    stock.deliver("a", 9)
    orders = orders_of(1, 1, 1)
    gate.before = lambda batch: orders[1] in batch and execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert [type(error) for error in place(*orders)] == [type(None), OperationalError, OperationalError]
    assert place(*orders_of(1)) == [None], "the next batch runs"
    ledger.assert_law(a=(7, 2))


SPLIT = "a is split for another sale, or units have just been returned. Try again."


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [((1, 2), {1: SPLIT}), ((1, 1, 3), {1: SPLIT, 2: "a: 3 wanted, 2 left"})],
    ids=["enough for all", "too little for all"],
)
def test_split_units_are_not_sold_out(ledger: Ledger, wanted: Sequence[int], refused: Mapping[int, str]) -> None:
    """Some units are in a segment of another sale. Orders that would need them get "try again", not "sold out"."""
    stock.deliver("a", 3)
    StockItem.objects.update(on_hand=1)
    StockSegment.objects.create(item_id="a", number=0, on_hand=2)
    orders = orders_of(*wanted)
    refusals = bulk.commit(orders, ledger.save)
    assert {at: str(refusals[order.id]) for at, order in enumerate(orders) if order.id in refusals} == refused
    assert stock.on_hand("a") == 2
