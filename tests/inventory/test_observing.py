"""What strategies report to the observer of their process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import UUID

import pytest
from django.test import override_settings

from inventory import observing, sold_out, stock
from inventory.errors import OverLimit, SoldOut, StockBusy
from inventory.observing import Observer
from inventory.queue.entries import QueueEntry
from inventory.strategies import registry
from inventory.strategies.group_commit import GroupCommit, commit
from inventory.strategies.locked import Locked
from inventory.strategies.locks import stock_lock
from tests.factories import new_request, nobody, preheated
from tests.inventory.conftest import Ledger, fails
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ON_POSTGRES_AND_REDIS = [
    name for name in registry.NAMES if name not in {"lua-queue", "redlock", "etcd-lock", "zookeeper-lock", "file-lock"}
]


class Notes(Observer):
    """Records every report, without its duration."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def lock_waited(self, strategy: str, seconds: float, *, granted: bool) -> None:
        assert seconds >= 0
        self.told.append(("waited", strategy, granted))

    def lock_held(self, strategy: str, seconds: float, *, lost: bool) -> None:
        assert seconds >= 0
        self.told.append(("held", strategy, lost))

    def batch_saved(self, orders: int) -> None:
        self.told.append(("batch", orders))

    def refused_from_memory(self) -> None:
        self.told.append(("from memory",))

    def committed(self, seconds: float) -> None:
        assert seconds >= 0
        self.told.append(("committed",))

    def batch_waited(self, since: float, until: float) -> None:
        assert since <= until
        self.told.append(("waited for a batch",))

    def queueing(self) -> AbstractContextManager[str]:
        return nullcontext(TRACE)

    def saving(self, traces: Mapping[UUID, str]) -> AbstractContextManager[None]:
        self.told.append(("saving", *traces.values()))
        return nullcontext()

    def left_queue(self, *, ages: Sequence[float], refused: int) -> None:
        assert all(0 <= age < WAIT_TIMEOUT for age in ages)
        self.told.append(("left the queue", len(ages), refused))

    def dead_letter(self) -> None:
        self.told.append(("dead letter",))


@pytest.fixture
def notes() -> Iterator[Notes]:
    assert observing.observers() == (), "nobody listens by default"
    listening = Notes()
    observing.listen(listening)
    yield listening
    observing.ignore(listening)


@pytest.mark.parametrize("name", ["redis-lock", "segmented-lock", "segmented-redis"])
def test_a_lock_is_told_with_its_strategy(name: str, notes: Notes, ledger: Ledger) -> None:
    strategy = preheated(name, {"a": 5, "b": 5})
    strategy.place(new_request(("a", 1), ("b", 1)), ledger.save)
    assert notes.told == [("waited", name, True)] * 2 + [("committed",)] + [("held", name, False)] * 2


def test_an_order_that_got_one_of_two_locks_tells_of_both(notes: Notes, ledger: Ledger) -> None:
    strategy = Locked("redis-lock", stock_lock, wait=0.0)
    with stock_lock("b").hold(), pytest.raises(StockBusy):
        strategy.place(new_request(("a", 1), ("b", 1)), ledger.save)
    told = [("waited", True), ("waited", False), ("held", False)]
    assert notes.told == [(what, "redis-lock", value) for what, value in told]


def test_a_lost_lease_is_told(notes: Notes, redis: Any) -> None:
    with override_settings(STOCK_LOCK_TTL=1.0), observing.hold(stock_lock("a"), 1.0, strategy="redis-lock") as lease:
        redis.flushall()  # Delete the grant, so that its renewal fails.
        wait_for(lambda: lease.lost)
    assert notes.told == [("waited", "redis-lock", True), ("held", "redis-lock", True)]


def test_a_batch_is_told_once(notes: Notes, ledger: Ledger) -> None:
    stock.deliver("a", 5)
    orders = [new_request(("a", 1)) for _ in range(3)]
    assert commit(orders, ledger.save) == [None] * 3
    GroupCommit().place(new_request(("a", 1)), ledger.save)
    assert notes.told == [("batch", 3), ("committed",), ("batch", 1), ("committed",), ("waited for a batch",)]


def test_a_refusal_from_memory_is_told_and_one_by_the_stock_is_not(notes: Notes) -> None:
    request = new_request(("a", 1))

    def refused() -> None:
        with pytest.raises(SoldOut), sold_out.remembered(request):
            raise SoldOut("a", wanted=1, left=0)

    with override_settings(SOLD_OUT_TTL=60.0):
        refused()
        assert notes.told == []
        refused()
    assert notes.told == [("from memory",)]


def test_orders_that_leave_the_queue_are_told(notes: Notes, ledger: Ledger) -> None:
    strategy = preheated("lua-queue", {"a": 5})
    first, second, third = (new_request(("a", 1)) for _ in range(3))
    for each in (first, second, third):
        strategy.place(each, ledger.save)
    save = ledger.refuse({second.id: OverLimit("a", limit=1, taken=1)})
    assert registry.work(save, lambda _: None, nobody) == 3
    assert notes.told == [("saving", TRACE, TRACE, TRACE), ("committed",), ("left the queue", 2, 1)]


def test_a_dead_letter_is_told(notes: Notes, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    preheated("lua-queue", {"a": 5}).place(new_request(("a", 1)), ledger.save)
    assert registry.work(fails(ValueError("no order can be saved")), lambda _: None, nobody) == 1
    assert notes.told == [("saving", TRACE), ("dead letter",)], "and of no commit, since it was rolled back"
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["trace"]) == ("ERROR", TRACE[3:35])


def test_the_age_of_a_queued_order_is_that_of_its_entry() -> None:
    entry = QueueEntry("1700000000250-3", None, None, "")
    assert entry.age(1_700_000_001.0) == 0.75
    assert entry.age(1_700_000_000.0) == 0, "the clock of the worker is behind that of Redis"


def test_every_strategy_tells_of_its_commit(notes: Notes, ledger: Ledger) -> None:
    for name in ON_POSTGRES_AND_REDIS:
        notes.told.clear()
        preheated(name, {name: 5}).place(new_request((name, 1)), ledger.save)
        assert notes.told.count(("committed",)) == 1, name


def test_two_observers_are_told(notes: Notes, ledger: Ledger) -> None:
    second = Notes()
    observing.listen(second)
    preheated("guarded-update", {"a": 5}).place(new_request(("a", 1)), ledger.save)
    observing.ignore(second)
    assert notes.told == second.told == [("committed",)]
