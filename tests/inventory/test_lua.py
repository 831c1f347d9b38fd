"""`lua`: Redis admits, Postgres decides, and `counter + reserved = on hand` whatever goes wrong in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from redis import Redis, RedisError

from inventory import stock
from inventory.counters.whole import NOTES, Counters
from inventory.errors import Refusal, SoldOut, StockNotLoaded, StockUnavailable
from inventory.models import StockItem
from inventory.requests import OrderRequest, Placement, Returned, Save, save_one
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from inventory.strategies.lua import Lua
from tests.factories import elsewhere, interleaved, new_request, preheated
from tests.inventory.conftest import Ledger
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy(ledger: Ledger) -> Strategy:
    """`lua`, with two units of `a`."""
    return preheated("lua", {"a": 2})


def sent_back(redis: Redis, request: OrderRequest) -> bool:
    """Whether the units of a request are no longer noted as its own."""
    return not redis.hexists(NOTES, str(request.id))


# Redis and Postgres agree


def test_in_save_the_units_are_reserved_and_at_rest_they_are_sold(
    strategy: Strategy, ledger: Ledger, counters: Counters
) -> None:
    seen = []

    def look(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        on_hand = elsewhere(lambda: StockItem.objects.get(sku="a").on_hand)
        seen.append((counters.left(["a"])["a"], counters.reserved()["a"], on_hand))
        return ledger.save(requests)

    strategy.place(new_request(("a", 1)), look)
    assert seen == [(1, 1, 2)]
    ledger.assert_law(a=(1, 1))
    assert counters.left(["a"]) == {"a": 1}


def test_who_is_refused_by_redis_reads_what_is_on_hand_and_waits_for_no_row(strategy: Strategy, ledger: Ledger) -> None:
    statements: list[str] = []

    def listen(execute: Callable[..., object], sql: str, *rest: object) -> object:
        statements.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(listen), pytest.raises(SoldOut):
        strategy.place(new_request(("a", 3)), ledger.save)
    assert [sql.split()[0] for sql in statements] == ["SELECT"]
    assert "FOR " not in statements[0]
    ledger.assert_law(a=(2, 0))


def test_a_counter_that_is_missing_is_not_loaded_and_not_sold_out(
    strategy: Strategy, ledger: Ledger, counters: Counters
) -> None:
    counters.unload(["a"])
    with pytest.raises(StockNotLoaded):
        strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(2, 0))


def test_preheating_copies_what_is_on_hand_now_and_nothing_for_a_sku_that_never_came(
    ledger: Ledger, counters: Counters
) -> None:
    stock.deliver("a", 3)
    registry.get("guarded-update").place(new_request(("a", 1)), ledger.save)
    registry.get("lua").preheat(["a", "unknown"], ledger.saved)
    assert counters.left(["a", "unknown"]) == {"a": 2, "unknown": 0}
    ledger.assert_law(a=(2, 1))


# Redis is wrong


def test_a_counter_above_the_truth_is_refused_by_the_guard_in_sql_and_nothing_is_oversold(
    strategy: Strategy, ledger: Ledger, counters: Counters
) -> None:
    counters.load("a", 5, (), make=False)
    for _ in range(2):
        strategy.place(new_request(("a", 1)), ledger.save)
    with pytest.raises(SoldOut, match="a: 1 wanted, 0 left"):
        strategy.place(new_request(("a", 1)), ledger.save)
    assert (ledger.figures()["a"].on_hand, ledger.figures()["a"].sold) == (0, 2)
    assert counters.reserved() == {}
    # A counter that was caught at it is trusted no more: it is loaded again before anybody else is admitted.
    with pytest.raises(StockNotLoaded):
        strategy.place(new_request(("a", 1)), ledger.save)
    strategy.preheat(["a"], ledger.saved)
    with pytest.raises(SoldOut, match="a: 1 wanted, 0 left"):
        strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(0, 2))


def test_it_is_refused_also_when_redis_has_gone_meanwhile(
    strategy: Strategy, ledger: Ledger, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters.load("a", 5, (), make=False)

    def gone(*rest: Any) -> None:
        raise RedisError("gone")

    monkeypatch.setattr(Counters, "unload", gone)
    with pytest.raises(SoldOut, match="a: 3 wanted, 2 left"):
        strategy.place(new_request(("a", 3)), ledger.save)
    assert strategy.place(new_request(("a", 2)), ledger.save) is Placement.COMMITTED


def test_without_the_guard_in_sql_the_constraint_refuses(
    strategy: Strategy, ledger: Ledger, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: who trusts the counter takes what is not there."""

    def trust_the_counter(sku: str, units: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE inventory_stockitem SET on_hand = on_hand - %s WHERE sku = %s", [units, sku])

    monkeypatch.setattr(stock, "take", trust_the_counter)
    counters.load("a", 5, (), make=False)
    with pytest.raises(IntegrityError, match="stock_on_hand_not_negative"):
        strategy.place(new_request(("a", 3)), ledger.save)
    assert (ledger.figures()["a"].on_hand, ledger.figures()["a"].sold) == (2, 0)
    assert (counters.left(["a"]), counters.reserved()) == ({"a": 5}, {})


BELOW = pytest.mark.parametrize("name", ["lua", "lua-queue", "segmented-redis"])


@pytest.fixture
def below(name: str, ledger: Ledger, redis: Redis) -> Strategy:
    """A strategy with four units of `a`, of which Redis knows one: it has come back older than the truth."""
    strategy = preheated(name, {"a": 1})
    stock.deliver("a", 3)
    return strategy


@BELOW
def test_a_counter_below_the_truth_is_not_loaded_and_not_sold_out(below: Strategy, ledger: Ledger, name: str) -> None:
    with pytest.raises(StockNotLoaded, match="a has more on hand than Redis knows of"):
        below.place(new_request(("a", 2)), ledger.save)
    below.preheat(["a"], ledger.saved)
    below.place(new_request(("a", 2)), ledger.save)
    with pytest.raises(SoldOut):
        below.place(new_request(("a", 5)), ledger.save)


@BELOW
def test_without_asking_postgres_too_it_would_be_sold_out(
    below: Strategy, ledger: Ledger, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    for module in ("lua", "segmented_redis"):
        monkeypatch.setattr(f"inventory.strategies.{module}.agree", lambda sku, admits: None)
    with pytest.raises(SoldOut):
        below.place(new_request(("a", 2)), ledger.save)


@pytest.mark.parametrize("when", ["before", "after"])
def test_orders_that_are_committed_between_the_two_answers_make_nobody_doubt_redis(
    strategy: Strategy, ledger: Ledger, when: str
) -> None:
    """Redis is asked first: since then there can only be less on hand. Asked after Postgres, it would seem too low."""
    with (
        interleaved(lambda: strategy.place(new_request(("a", 1)), ledger.save), **{when: "SELECT"}),
        pytest.raises(SoldOut),
    ):
        strategy.place(new_request(("a", 3)), ledger.save)
    ledger.assert_law(a=(1, 1))


def test_what_is_committed_and_still_noted_as_reserved_makes_nobody_doubt_redis(
    strategy: Strategy, ledger: Ledger, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counters, "confirm_reservation", lambda *request: False)
    strategy.place(new_request(("a", 1)), ledger.save)
    assert counters.admits("a") == 2
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 3)), ledger.save)


# The order is surely not saved: the units go back, once


def test_an_order_whose_save_fails_gives_its_units_back_once(
    strategy: Strategy, ledger: Ledger, counters: Counters, redis: Redis
) -> None:
    def fail(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        assert counters.reserved() == {"a": 2}
        raise KeyError

    request = new_request(("a", 2))
    with pytest.raises(KeyError):
        strategy.place(request, fail)
    assert sent_back(redis, request)
    counters.give_back(request.id, request.skus)
    assert counters.left(["a"]) == {"a": 2}
    ledger.assert_law(a=(2, 0))


def test_an_interrupted_save_gives_its_units_back(strategy: Strategy, ledger: Ledger, counters: Counters) -> None:
    def stop(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        strategy.place(new_request(("a", 1)), stop)
    assert counters.left(["a"]) == {"a": 2}
    ledger.assert_law(a=(2, 0))


# Nobody knows whether the order is saved: the note stays


def the_answer_is_lost_before_the_commit(requests: Sequence[OrderRequest]) -> None:
    """The backend is gone when COMMIT is sent, so it surely was not done, which the client cannot know."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()

    def end_it() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
            wait_for(lambda: not _backend_is_there(pid), "the backend to end")

    elsewhere(end_it)


def _backend_is_there(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone() is not None


def the_answer_is_lost_after_the_commit(requests: Sequence[OrderRequest]) -> None:
    """COMMIT has been done, and what comes back is an error."""

    def lose() -> None:
        raise OperationalError("the answer was lost")

    transaction.on_commit(lose)


@pytest.mark.parametrize(
    ("lose", "saved"), [(the_answer_is_lost_before_the_commit, False), (the_answer_is_lost_after_the_commit, True)]
)
def test_when_the_outcome_of_the_commit_is_unknown_the_note_stays_and_nothing_is_given_back(
    strategy: Strategy,
    ledger: Ledger,
    counters: Counters,
    redis: Redis,
    lose: Callable[[Sequence[OrderRequest]], None],
    saved: bool,
) -> None:
    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        ledger.save(requests)
        lose(requests)
        return {}

    request = new_request(("a", 1))
    with pytest.raises(DatabaseError):
        strategy.place(request, save)
    connection.close()
    assert ledger.orders() == ([request.id] if saved else [])
    assert not sent_back(redis, request)
    assert (counters.left(["a"]), counters.reserved()) == ({"a": 1}, {"a": 1})
    # Never more in Redis than in Postgres: whichever it was, nothing that is sold can be admitted again.
    assert ledger.figures()["a"].on_hand == (1 if saved else 2)
    assert ledger.figures()["a"].conserved


def test_who_gives_back_on_any_error_admits_a_unit_that_is_sold(
    strategy: Strategy, ledger: Ledger, counters: Counters
) -> None:
    """The negative control: the same lost answer, and a strategy that takes it for a rollback."""

    class GivesBackOnAnyError(Lua):
        def _place(self, order: OrderRequest, save: Save) -> Placement:
            counters.take(order)
            try:
                with transaction.atomic(durable=True):
                    for item in order.items:
                        stock.take(item.sku, item.quantity)
                    save_one(order, save)
            except BaseException:
                counters.give_back(order.id, order.skus)
                raise
            return Placement.COMMITTED

    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        the_answer_is_lost_after_the_commit(requests)
        return ledger.save(requests)

    with pytest.raises(OperationalError):
        GivesBackOnAnyError(lambda: counters).place(new_request(("a", 1)), save)
    assert ledger.figures()["a"].on_hand == 1
    assert (counters.left(["a"]), counters.reserved()) == ({"a": 2}, {})


# Redis goes away


def test_who_asks_again_and_again_after_lost_answers_withholds_nothing(
    strategy: Strategy, ledger: Ledger, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it is a new request, as it is in the shop."""
    take = counters._take

    def take_and_lose_the_answer(*said: object) -> None:
        take(*said)
        raise RedisError("the answer was lost")

    monkeypatch.setattr(counters, "_take", take_and_lose_the_answer)
    for _ in range(3):
        with pytest.raises(StockUnavailable):
            Lua(lambda: counters).place(new_request(("a", 1)), ledger.save)
    assert strategy.place(new_request(("a", 2)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(0, 2))


@pytest.fixture
def nobody(tmp_path: Path) -> Counters:
    return Counters(Redis.from_url(f"unix://{tmp_path}/nobody.sock", retry=None))


def test_without_redis_it_is_unavailable_and_nothing_is_taken(ledger: Ledger, nobody: Counters) -> None:
    stock.deliver("a", 1)
    with pytest.raises(StockUnavailable):
        Lua(lambda: nobody).place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 0))


def test_when_redis_goes_away_after_the_take_the_order_stands_and_its_note_too(
    strategy: Strategy, ledger: Ledger, counters: Counters, nobody: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    class GoesAway(Counters):
        def confirm_reservation(self, request: UUID, skus: Iterable[str]) -> bool:
            return nobody.confirm_reservation(request, skus)

    request = new_request(("a", 1))
    with caplog.at_level(logging.WARNING):
        assert Lua(lambda: GoesAway(counters.client)).place(request, ledger.save) is Placement.COMMITTED
    assert str(request.id) in caplog.text
    assert ledger.orders() == [request.id]
    assert (counters.left(["a"]), counters.reserved()) == ({"a": 1}, {"a": 1})


def test_units_that_redis_does_not_take_back_are_logged_and_no_error(
    ledger: Ledger, nobody: Counters, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.get("lua"), "counters", lambda: nobody)
    with caplog.at_level(logging.WARNING):
        registry.given_back([Returned(1, 1, "a", 2)], ledger.saved)
    assert "sku='a', quantity=2" in caplog.text
