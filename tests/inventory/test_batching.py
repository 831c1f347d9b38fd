"""The batcher: concurrent calls share a batch that starts after they arrive. Waiting calls hold no connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, connections, transaction

from inventory import batching
from inventory.batching import Batcher
from tests.waiting import WAIT_TIMEOUT, wait_for


class Counting:
    """A batcher that returns the number of the batch for each request. The first batch waits for `go_on`."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, float]] = []
        self.batcher: Batcher[str, int] = Batcher(waited=lambda *since_until: self.waits.append(since_until))
        self.batches: list[list[str]] = []
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.raises: dict[str, BaseException] = {}

    def run(self, requests: Sequence[str]) -> list[int]:
        self.batches.append(list(requests))
        number = len(self.batches)
        self.inside.set()
        assert self.go_on.wait(WAIT_TIMEOUT)
        for request in requests:
            if request in self.raises:
                raise self.raises[request]
        return [number for _ in requests]

    def call(self, request: str) -> int:
        return self.batcher.submit(request, self.run)


Submit = Callable[[str], "Future[int]"]


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def submit(counting: Counting) -> Iterator[Submit]:
    """A function that makes a call in a thread. It returns once the thread leads a batch or waits for one."""
    pool = ThreadPoolExecutor(8)

    def start(request: str) -> Future[int]:
        before, first = counting.batcher.pending(), not counting.inside.is_set()
        future = pool.submit(counting.call, request)
        if first:
            assert counting.inside.wait(WAIT_TIMEOUT)
        else:
            wait_for(lambda: counting.batcher.pending() > before, "the call to wait")
        return future

    yield start
    counting.go_on.set()
    pool.shutdown()


def test_a_lone_call_does_not_wait(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=time.monotonic))  # A sleep would fail.
    counting.go_on.set()
    threads = threading.active_count()
    assert [counting.call(request) for request in "ab"] == [1, 2]
    assert threading.active_count() == threads


def test_after_a_batch_of_several_the_next_one_waits_for_more(
    submit: Submit, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Future[int]] = []

    def sleep(seconds: float) -> None:
        if not late:
            late.append(submit("d"))

    results = [submit(request) for request in "abc"]
    counting.go_on.set()
    assert [result.result(WAIT_TIMEOUT) for result in results] == [1, 2, 2]
    monkeypatch.setattr(batching, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    counting.call("e")
    assert late[0].result(WAIT_TIMEOUT)
    assert counting.batches[-1] == ["e", "d"]


@pytest.mark.parametrize(
    "error", [None, ValueError("no answer"), KeyboardInterrupt()], ids=["an answer", "an error", "an interruption"]
)
def test_each_call_of_a_batch_waits_for_its_beginning_and_gets_its_error(
    submit: Submit, counting: Counting, error: BaseException | None
) -> None:
    counting.raises = {"c": error} if error else {}
    results = [submit(request) for request in "abc"]
    before = time.monotonic()
    counting.go_on.set()
    assert [result.exception(WAIT_TIMEOUT) for result in results] == [None, error, error]
    (first, begun), *others = sorted(counting.waits)
    assert first <= begun < before
    assert len(others) == 2
    assert all(since < before < until for since, until in others), "they began after the batch before them"
    assert counting.call("d") == 3


def test_too_few_results_are_an_error(counting: Counting) -> None:
    counting.go_on.set()
    with pytest.raises(ValueError, match="shorter"):
        counting.batcher.submit("a", lambda requests: [])
    assert counting.call("b") == 1


@pytest.mark.django_db(transaction=True)
def test_a_call_that_cannot_close_its_connection_is_not_pending(
    submit: Submit, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OperationalError("The connection is broken.")

    leading = submit("a")
    with monkeypatch.context() as patched:
        patched.setattr(connections[connection.alias], "close", fail)
        with pytest.raises(OperationalError):
            counting.call("b")
    following = submit("c")
    counting.go_on.set()
    assert (leading.result(WAIT_TIMEOUT), following.result(WAIT_TIMEOUT)) == (1, 2)
    assert counting.batches == [["a"], ["c"]]


@pytest.mark.django_db(transaction=True)
def test_an_open_transaction_outlives_the_wait(submit: Submit, counting: Counting) -> None:
    leading = submit("a")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE written (n int) ON COMMIT DROP")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: (wait_for(lambda: counting.batcher.pending() == 1, "the call"), counting.go_on.set()))
            assert counting.call("b") == 2
        cursor.execute("SELECT FROM written")
    assert leading.result(WAIT_TIMEOUT) == 1
