"""The batcher: concurrent calls share a batch that starts after they arrive, and hold no connection while waiting."""

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
    """Returns the number of the batch for each request. The first batch waits for `go_on`."""

    def __init__(self) -> None:
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


Submit = Callable[[str], "Future[int]"]


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def waits() -> list[tuple[float, float]]:
    return []


@pytest.fixture
def batcher(waits: list[tuple[float, float]]) -> Batcher[str, int]:
    return Batcher(waited=lambda since, until: waits.append((since, until)))


@pytest.fixture
def submit(batcher: Batcher[str, int], counting: Counting) -> Iterator[Submit]:
    """Submit in a thread. Return once the thread leads a batch or waits for one."""
    pool = ThreadPoolExecutor(8)

    def start(request: str) -> Future[int]:
        before, first = batcher.pending(), not counting.inside.is_set()
        future = pool.submit(batcher.submit, request, counting.run)
        if first:
            assert counting.inside.wait(WAIT_TIMEOUT)
        else:
            wait_for(lambda: batcher.pending() > before, "the call to wait")
        return future

    yield start
    counting.go_on.set()
    pool.shutdown()


def test_a_lone_call_does_not_wait(
    batcher: Batcher[str, int], counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sleep = SimpleNamespace(monotonic=time.monotonic)
    monkeypatch.setattr(batching, "time", without_sleep)
    counting.go_on.set()
    threads = threading.active_count()
    assert [batcher.submit(request, counting.run) for request in "ab"] == [1, 2]
    assert threading.active_count() == threads


def test_after_a_batch_of_several_the_next_one_waits_for_more(
    batcher: Batcher[str, int], submit: Submit, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Future[int]] = []

    def sleep(seconds: float) -> None:
        if not late:
            late.append(submit("d"))

    results = [submit(request) for request in "abc"]
    counting.go_on.set()
    assert [result.result(WAIT_TIMEOUT) for result in results] == [1, 2, 2]
    monkeypatch.setattr(batching, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    batcher.submit("e", counting.run)
    assert late[0].result(WAIT_TIMEOUT)
    assert counting.batches[-1] == ["e", "d"]


@pytest.mark.parametrize(
    "error", [None, ValueError("no answer"), KeyboardInterrupt()], ids=["an answer", "an error", "an interruption"]
)
def test_each_call_of_a_batch_waits_for_its_beginning_and_gets_its_error(
    batcher: Batcher[str, int],
    waits: list[tuple[float, float]],
    submit: Submit,
    counting: Counting,
    error: BaseException | None,
) -> None:
    counting.raises = {"c": error} if error else {}
    results = [submit(request) for request in "abc"]
    before = time.monotonic()
    counting.go_on.set()
    assert [result.exception(WAIT_TIMEOUT) for result in results] == [None, error, error]
    (first, begun), *others = sorted(waits)
    assert first <= begun < before
    assert len(others) == 2
    assert all(since < before < until for since, until in others), "they began after the batch before them"
    assert batcher.submit("d", counting.run) == 3


def test_too_few_results_are_an_error(batcher: Batcher[str, int], counting: Counting) -> None:
    counting.go_on.set()
    with pytest.raises(ValueError, match="shorter"):
        batcher.submit("a", lambda requests: [])
    assert batcher.submit("b", counting.run) == 1


@pytest.mark.django_db(transaction=True)
def test_a_waiting_call_holds_no_connection(batcher: Batcher[str, int], counting: Counting) -> None:
    """A waiting call returns its connection.

    Otherwise waiting calls could use up all connections and block the leader.
    """
    held = []

    def call(request: str) -> int:
        connection.ensure_connection()
        held.append(connections[connection.alias])
        try:
            return batcher.submit(request, counting.run)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        leading = pool.submit(call, "a")
        assert counting.inside.wait(WAIT_TIMEOUT)
        following = pool.submit(call, "b")
        wait_for(lambda: batcher.pending() == 1, "the second call to wait")
        assert (held[0].connection is None, held[1].connection is None) == (False, True)
        counting.go_on.set()
        assert (leading.result(WAIT_TIMEOUT), following.result(WAIT_TIMEOUT)) == (1, 2)


@pytest.mark.django_db(transaction=True)
def test_a_call_that_cannot_close_its_connection_is_not_pending(
    batcher: Batcher[str, int], submit: Submit, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OperationalError("The connection is broken.")

    leading = submit("a")
    with monkeypatch.context() as patched:
        patched.setattr(connections[connection.alias], "close", fail)
        with pytest.raises(OperationalError):
            batcher.submit("b", counting.run)
    following = submit("c")
    counting.go_on.set()
    assert (leading.result(WAIT_TIMEOUT), following.result(WAIT_TIMEOUT)) == (1, 2)
    assert counting.batches == [["a"], ["c"]]


@pytest.mark.django_db(transaction=True)
def test_an_open_transaction_outlives_the_wait(batcher: Batcher[str, int], submit: Submit, counting: Counting) -> None:
    leading = submit("a")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE written (n int) ON COMMIT DROP")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: (wait_for(lambda: batcher.pending() == 1, "the call"), counting.go_on.set()))
            assert batcher.submit("b", counting.run) == 2
        cursor.execute("SELECT FROM written")
    assert leading.result(WAIT_TIMEOUT) == 1
