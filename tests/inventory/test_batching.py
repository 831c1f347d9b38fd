"""Who asks at the same time is answered together, never by what was known before, and holds nothing meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection, connections, transaction

from inventory.batching import Batcher
from tests.waiting import PATIENCE, wait_for


class Oracle:
    """Answers a question with the number of the group that it came with. The first group waits until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.raises: dict[str, BaseException] = {}

    def answer(self, questions: Sequence[str]) -> list[int]:
        self.groups.append(list(questions))
        mine = len(self.groups)
        self.inside.set()
        assert self.go_on.wait(PATIENCE)
        for question in questions:
            if question in self.raises:
                raise self.raises[question]
        return [mine for _ in questions]


Ask = Callable[[str], "Future[int]"]


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def together() -> Batcher[str, int]:
    return Batcher()


@pytest.fixture
def ask(together: Batcher[str, int], oracle: Oracle) -> Iterator[Ask]:
    """Ask in a thread of its own, and return once it waits, or answers for all."""
    pool = ThreadPoolExecutor(8)

    def start(question: str) -> Future[int]:
        before, first = together.pending(), not oracle.inside.is_set()
        future = pool.submit(together.submit, question, oracle.answer)
        if first:
            assert oracle.inside.wait(PATIENCE)
        else:
            wait_for(lambda: together.pending() > before, "the question to wait")
        return future

    yield start
    oracle.go_on.set()
    pool.shutdown()


def test_who_asks_while_one_is_being_answered_is_answered_with_all_who_did(ask: Ask, oracle: Oracle) -> None:
    """Not with the one who came before them: what he is answered may have been true before they asked."""
    answers = [ask(question) for question in "abcd"]
    oracle.go_on.set()
    assert [answer.result(PATIENCE) for answer in answers] == [1, 2, 2, 2]
    assert oracle.groups == [["a"], ["b", "c", "d"]]


def test_nobody_waits_for_company(together: Batcher[str, int], oracle: Oracle) -> None:
    oracle.go_on.set()
    threads = threading.active_count()
    assert [together.submit(question, oracle.answer) for question in "ab"] == [1, 2]
    assert threading.active_count() == threads


@pytest.mark.parametrize("error", [ValueError("no answer"), KeyboardInterrupt()], ids=["an error", "an interruption"])
def test_what_ends_a_group_is_raised_for_each_of_it_and_the_next_group_goes_on(
    together: Batcher[str, int], ask: Ask, oracle: Oracle, error: BaseException
) -> None:
    oracle.raises = {"c": error}
    answers = [ask(question) for question in "abc"]
    oracle.go_on.set()
    assert [answer.exception(PATIENCE) for answer in answers] == [None, error, error]
    assert together.submit("d", oracle.answer) == 3


def test_an_answer_too_few_is_an_error_and_leaves_nobody_waiting(together: Batcher[str, int], oracle: Oracle) -> None:
    oracle.go_on.set()
    with pytest.raises(ValueError, match="shorter"):
        together.submit("a", lambda questions: [])
    assert together.submit("b", oracle.answer) == 1


@pytest.mark.django_db(transaction=True)
def test_who_waits_holds_no_connection(together: Batcher[str, int], oracle: Oracle) -> None:
    """Else, with fewer connections than threads, all may be held by those who wait for the one who gets none."""
    held = []

    def ask(question: str) -> int:
        connection.ensure_connection()
        held.append(connections[connection.alias])
        try:
            return together.submit(question, oracle.answer)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        leading = pool.submit(ask, "a")
        assert oracle.inside.wait(PATIENCE)
        following = pool.submit(ask, "b")
        wait_for(lambda: together.pending() == 1, "the second question to wait")
        assert (held[0].connection is None, held[1].connection is None) == (False, True)
        oracle.go_on.set()
        assert (leading.result(PATIENCE), following.result(PATIENCE)) == (1, 2)


@pytest.mark.django_db(transaction=True)
def test_who_cannot_give_his_connection_back_is_not_waited_for(
    together: Batcher[str, int], ask: Ask, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OperationalError("The connection is broken.")

    leading = ask("a")
    with monkeypatch.context() as patched:
        patched.setattr(connections[connection.alias], "close", fail)
        with pytest.raises(OperationalError):
            together.submit("b", oracle.answer)
    following = ask("c")
    oracle.go_on.set()
    assert (leading.result(PATIENCE), following.result(PATIENCE)) == (1, 2)
    assert oracle.groups == [["a"], ["c"]]


@pytest.mark.django_db(transaction=True)
def test_an_open_transaction_outlives_the_wait(together: Batcher[str, int], ask: Ask, oracle: Oracle) -> None:
    leading = ask("a")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE written (n int) ON COMMIT DROP")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: (wait_for(lambda: together.pending() == 1, "the question"), oracle.go_on.set()))
            assert together.submit("b", oracle.answer) == 2
        cursor.execute("SELECT FROM written")
    assert leading.result(PATIENCE) == 1
