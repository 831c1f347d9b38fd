"""The cache of offers and of sold-out stock: expiry, refresh by one caller at a time, and invalidation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from inventory import caching
from inventory.caching import Cache, TimeToLive
from tests.waiting import WAIT_TIMEOUT, wait_for


class Source:
    """A cached value that is the number of its loads. `during` runs once, in the middle of the next load."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache: Cache[str, int] = Cache()
        self.now, self.loads = 100.0, 0
        self.during: Callable[[], object] = lambda: None
        monkeypatch.setattr(caching, "time", SimpleNamespace(monotonic=lambda: self.now))

    def get(self, *, ttl: TimeToLive = 1.0, **options: Any) -> int | None:
        return self.cache.get_or_load("a", self._load, ttl=ttl, stale_if=OSError, **options)

    def _load(self, key: str) -> int | None:
        self.loads = loaded = self.loads + 1
        during, self.during = self.during, lambda: None
        during()
        return loaded


def fail() -> None:
    raise OSError("no answer")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    return Source(monkeypatch)


@pytest.mark.parametrize(
    ("age", "mine", "others"),
    [
        pytest.param(0.4, 1, 1, id="first half: nobody loads"),
        pytest.param(0.5, 2, 1, id="second half: one loads, the others use the old value"),
        pytest.param(0.99, 2, 1, id="just before the end"),
    ],
)
def test_one_caller_refreshes_a_value_before_it_expires(source: Source, age: float, mine: int, others: int) -> None:
    source.get()
    source.now += age
    seen: list[int | None] = []
    source.during = lambda: seen.append(source.get())
    assert source.get() == mine
    assert (seen or [source.get()]) == [others]


def note_waiting(monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Call `note` whenever a caller begins to wait for another caller's load."""

    class Noted(Future):  # type: ignore[type-arg]
        def result(self, timeout: float | None = None) -> Any:
            note()
            return super().result(timeout)

    monkeypatch.setattr(caching, "Future", Noted)


@pytest.mark.parametrize("error", [None, OSError("no answer")], ids=["a value", "an error"])
def test_while_nothing_is_usable_one_caller_loads_for_all(
    source: Source, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    waiting: list[Future[int | None]] = []
    asked: list[object] = []

    def during() -> None:
        waiting.extend(pool.submit(source.get) for _ in range(3))
        wait_for(lambda: len(asked) == 3 or source.loads > 1, "the others to wait, or to load")
        if error:
            raise error

    note_waiting(monkeypatch, lambda: asked.append(1))
    source.during = during
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(source.get).exception(WAIT_TIMEOUT)
        assert [first, *(each.exception(WAIT_TIMEOUT) for each in waiting)] == [error] * 4
    assert source.loads == 1


@pytest.mark.django_db(transaction=True)
def test_a_caller_that_waits_for_a_load_holds_no_connection(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits for a load returns its connection, so that the loading caller can get one."""
    held: list[BaseDatabaseWrapper] = []
    open_ones: list[bool] = []

    def wait() -> int | None:
        connection.ensure_connection()
        held.append(connections[connection.alias])
        return source.get()

    def during() -> None:
        pool.submit(wait)
        wait_for(lambda: bool(open_ones), "the other to wait")

    note_waiting(monkeypatch, lambda: open_ones.append(connections[connection.alias].connection is not None))
    source.during = during
    with ThreadPoolExecutor(1) as pool:
        source.get()
    assert (len(held), open_ones[0]) == (1, False)


def test_a_caller_after_an_invalidation_does_not_wait_for_the_older_load(source: Source) -> None:
    later: list[int | None] = []

    def during() -> None:
        if not later:
            later.append(None)
            source.cache.forget("a")
            later.append(source.get())

    source.during = during
    assert source.get() == 1
    assert later[1:] == [2]


def test_a_refreshed_value_is_used_from_then_on(source: Source) -> None:
    source.get()
    source.now += 0.5
    source.get()
    source.now += 0.9
    source.during = fail
    assert (source.get(), source.loads) == (2, 3)


@pytest.mark.parametrize(("age", "value"), [(0.5, 1), (1.0, None)], ids=["usable", "expired"])
def test_after_an_error_a_value_is_used_until_it_expires(source: Source, age: float, value: int | None) -> None:
    source.get()
    source.now += age
    source.during = fail
    if value is None:
        with pytest.raises(OSError, match="no answer"):
            source.get()
    else:
        assert source.get() == value
        assert (source.get(), source.loads) == (value, 2), "nobody tries again before it expires"


def test_a_stale_value_is_used_while_one_caller_loads(source: Source) -> None:
    source.get()
    source.now += 5.0
    seen: list[int | None] = []
    get = partial(source.get, stale_while_loading=True)
    with ThreadPoolExecutor(1) as pool:
        source.during = lambda: seen.append(pool.submit(get).result(WAIT_TIMEOUT))
        assert (get(), seen, source.loads) == (2, [1], 2)


def test_a_value_that_takes_long_to_load_is_used_longer(source: Source) -> None:
    def slow() -> None:
        source.now += 4.0

    source.during = slow
    source.get(ttl=lambda took: 3 * took)
    source.now += 1.9
    assert source.get() == 1
    source.now += 0.2
    assert source.get() == 2


def test_another_error_reaches_the_caller_at_any_age(source: Source) -> None:
    source.get()
    source.now += 0.5
    source.during = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        source.get()


def test_none_is_not_cached_and_a_ttl_of_0_caches_nothing(source: Source) -> None:
    loads: list[str] = []
    for _ in range(2):
        assert source.cache.get_or_load("b", loads.append, ttl=1.0, stale_if=OSError) is None
    assert loads == ["b", "b"]
    assert (source.get(ttl=0), source.get(ttl=0)) == (1, 2)


@pytest.mark.parametrize("drop", ["forget", "clear"])
@pytest.mark.parametrize("age", [None, 0.5, 1.0], ids=["first load", "refresh", "expired"])
def test_a_value_that_was_loaded_before_an_invalidation_is_not_stored(
    source: Source, drop: str, age: float | None
) -> None:
    if age is not None:
        source.get()
        source.now += age
    source.during = lambda: source.cache.forget("a") if drop == "forget" else source.cache.clear()
    before = source.get()
    assert (after := source.get()) != before
    source.cache.forget("b")
    assert source.get() == after, "an invalidation keeps other keys"


def test_entries_are_claimed_all_or_none(source: Source) -> None:
    cache = source.cache
    for key in "ab":
        cache.put(key, 1, refresh_at=100.0)
    due = {key: cache.get(key) for key in "ab"}
    claimed = cache.claim(due, until=101.0)
    assert claimed == {key: cache.get(key) for key in "ab"}
    assert cache.claim(due, until=102.0) is None, "b and a are claimed already"
    cache.put("b", 2, refresh_at=100.0)
    assert cache.claim(claimed or {}, until=103.0) is None
    assert cache.get("a").refresh_at == 101.0, "a was not claimed alone"
