"""`lua`: Redis admits and Postgres decides. If a step fails, Redis still offers no unit that is sold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, DataError, IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from redis import Redis, RedisError

from inventory import stock
from inventory.counters.segmented import SegmentCounters
from inventory.counters.whole import RESERVATIONS, Counters
from inventory.errors import Refusal, SoldOut, StockNotLoaded
from inventory.requests import OrderRequest, Placement, ReturnedUnits, Taking
from inventory.strategies import lua, registry
from inventory.strategies.base import Strategy
from tests.factories import elsewhere, interleaved, new_request, preheated
from tests.inventory.conftest import Ledger, SaveSold, after, execute, fails, fetch

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy(ledger: Ledger) -> Strategy:
    """The strategy `lua`, with two units of `a` preheated."""
    return preheated("lua", {"a": 2})


def units(counters: Counters) -> tuple[int | None, Mapping[str, int]]:
    return counters.left(["a"])["a"], counters.reserved()


@pytest.mark.parametrize("name", ["lua", "segmented-redis"])
def test_units_are_reserved_during_save(ledger: Ledger, name: str) -> None:
    selling, seen = preheated(name, {"a": 2}), []

    def look() -> None:
        seen.append((*registry.redis_stock(["a"])["a"], elsewhere(lambda: stock.on_hand("a"))))

    selling.place(new_request(("a", 1)), after(look, ledger.save))
    look()
    assert seen == [(1, 1, 2), (1, 0, 1)], "units in the counter, reserved units, units on hand"


def test_a_refused_order_locks_no_row(strategy: Strategy, ledger: Ledger) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(SoldOut):
        strategy.place(new_request(("a", 3)), ledger.save)
    (query,) = queries
    assert query["sql"].startswith("SELECT")
    assert "FOR " not in query["sql"]
    ledger.assert_law(a=(2, 0))


@pytest.mark.parametrize("redis_goes", [False, True])
@pytest.mark.parametrize("name", ["lua", "segmented-redis"])
def test_a_counter_too_high_is_deleted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str, redis_goes: bool
) -> None:
    """Postgres refuses units that only Redis counts, and the counter is deleted. Without Redis, it stays too high."""

    def gone(*rest: Any) -> None:
        raise RedisError("gone")

    selling = preheated(name, {"a": 10})
    registry.get("guarded-update").place(new_request(("a", 9)), ledger.save)
    if redis_goes:
        monkeypatch.setattr(Counters, "unload", gone)
        monkeypatch.setattr(SegmentCounters, "unload_segments", gone)
    for reason in ("a: 2 wanted, 1 left", "a: 2 wanted, 1 left" if redis_goes else "preheat its sale"):
        with pytest.raises((SoldOut, StockNotLoaded), match=reason):
            selling.place(new_request(("a", 2)), ledger.save)
    selling.preheat(["a"], ledger.saved)
    assert selling.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(0, 10))


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("name", ["lua", "lua-queue", "segmented-redis"])
def test_a_counter_too_low_is_not_sold_out(
    ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch, name: str, verified: bool
) -> None:
    strategy = preheated(name, {"a": 1})
    stock.deliver("a", 3)
    if not verified:
        for module in ("lua", "segmented_redis"):
            monkeypatch.setattr(f"inventory.strategies.{module}.verify_sold_out", lambda sku, total: None)
    with pytest.raises(StockNotLoaded if verified else SoldOut):
        strategy.place(new_request(("a", 2)), ledger.save)
    strategy.preheat(["a"], ledger.saved)
    strategy.place(new_request(("a", 2)), ledger.save)
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 5)), ledger.save)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_between_the_reads_is_no_doubt(strategy: Strategy, ledger: Ledger, when: str) -> None:
    """An order that commits just before or after Postgres is read does not make the counter look too low."""
    with (
        interleaved(lambda: strategy.place(new_request(("a", 1)), ledger.save), **{when: "SELECT"}),
        pytest.raises(SoldOut),
    ):
        strategy.place(new_request(("a", 3)), ledger.save)
    ledger.assert_law(a=(1, 1))


def test_a_committed_reservation_is_no_doubt(
    strategy: Strategy, ledger: Ledger, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reservation that stays after its order was saved does not make the counter look too low."""
    monkeypatch.setattr(Counters, "confirm_reservation", lambda *rest: False)
    strategy.place(new_request(("a", 1)), ledger.save)
    assert units(counters) == (1, {"a": 1})
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 3)), ledger.save)


@pytest.mark.parametrize("error", [KeyError(), KeyboardInterrupt()], ids=["an error", "an interruption"])
def test_a_failed_save_gives_units_back_once(
    strategy: Strategy, ledger: Ledger, counters: Counters, error: BaseException
) -> None:
    order = new_request(("a", 2))
    with pytest.raises(type(error)):
        strategy.place(order, fails(error))
    assert units(counters) == (2, {})
    counters.give_back(order.id, order.skus)
    ledger.assert_law(a=(2, 0))


def end_this_session() -> None:
    """End the Postgres session of this thread, as a restart of Postgres does."""
    (pid,) = fetch("SELECT pg_backend_pid()")
    elsewhere(lambda: execute(f"SELECT pg_terminate_backend({pid}, 5000)"))


def lost_after_the_commit() -> None:
    """Let COMMIT succeed, and raise an error as if its answer was lost."""

    def lose() -> None:
        raise OperationalError("the answer was lost")

    transaction.on_commit(lose)


@pytest.mark.parametrize(("lose", "saved"), [(end_this_session, False), (lost_after_the_commit, True)])
def test_an_unknown_commit_keeps_the_reservation(
    strategy: Strategy, ledger: Ledger, counters: Counters, redis: Redis, lose: Callable[[], None], saved: bool
) -> None:
    def save(orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        ledger.save(orders)
        lose()
        return {}

    order = new_request(("a", 1))
    with pytest.raises(DatabaseError):
        strategy.place(order, save)
    connection.close()
    assert ledger.orders() == ([order.id] if saved else [])
    assert redis.hexists(RESERVATIONS, str(order.id))
    assert units(counters) == (1, {"a": 1}), "Redis never has more than Postgres"
    assert ledger.figures()["a"].on_hand == (1 if saved else 2)
    assert ledger.figures()["a"].conserved


@pytest.mark.parametrize(
    ("committed", "error", "reserved"),
    [
        (True, OperationalError("the answer was lost"), {"a": 1}),
        (False, OperationalError("the answer was lost"), {"a": 1}),
        (False, IntegrityError("a constraint"), {}),
    ],
    ids=["lost after the commit", "lost before it", "refused by Postgres"],
)
def test_an_unknown_end_of_the_one_statement_keeps_the_reservation(
    strategy: Strategy, ledger: Ledger, counters: Counters, committed: bool, error: Exception, reserved: dict[str, int]
) -> None:
    class Failing(SaveSold):
        def at_once(self, orders: Sequence[OrderRequest], taking: Taking) -> bool:
            if committed:
                super().at_once(orders, taking)
            raise error

    with pytest.raises(type(error)):
        strategy.place(new_request(("a", 1)), Failing())
    assert units(counters) == (2 - len(reserved), reserved)
    assert ledger.figures()["a"].on_hand == (1 if committed else 2)
    assert ledger.figures()["a"].conserved


@pytest.mark.parametrize("looks", [True, False], ids=["looks", "control"])
@pytest.mark.parametrize("name", ["lua", "segmented-redis"])
def test_after_a_restart_of_postgres_no_units_stay_reserved(
    ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch, name: str, looks: bool
) -> None:
    """An order replaces a connection that Postgres has ended. Control: otherwise its unit stays reserved."""
    selling = preheated(name, {"a": 2})
    if not looks:
        for module in ("lua", "segmented_redis"):
            monkeypatch.setattr(f"inventory.strategies.{module}.leave_ended_session", lambda: None)
    end_this_session()
    if looks:
        selling.place(new_request(("a", 1)), ledger.save)
        ledger.assert_law(a=(1, 1))
    else:
        with pytest.raises(OperationalError):
            selling.place(new_request(("a", 1)), ledger.save)
        connection.close()
    assert registry.redis_stock(["a"])["a"] == (1, 0 if looks else 1)


def test_a_session_that_an_earlier_query_has_lost_is_replaced(strategy: Strategy, ledger: Ledger) -> None:
    """An order replaces a connection that the client has closed. An earlier query of the request may have lost it."""
    connection.ensure_connection()
    connection.connection.close()
    strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 1))


def test_sessions_that_end_at_once_do_not_keep_a_thread(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order replaces a limited number of ended connections. A pooler may close each new connection at once."""
    looks: list[bool] = []

    def ended() -> bool:
        looks.append(True)
        assert len(looks) <= 3, "the loop goes on"
        return True

    monkeypatch.setattr(lua, "MOST_ENDED", 3)
    monkeypatch.setattr(lua, "_has_ended", ended)
    lua.leave_ended_session()
    assert len(looks) == 3


def test_without_redis_returned_units_are_logged(
    ledger: Ledger, no_redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.get("lua"), "counters", lambda: Counters(no_redis))
    registry.units_returned([ReturnedUnits(1, 1, "a", 2)], ledger.saved)
    assert "sku='a', quantity=2" in caplog.text


@pytest.mark.parametrize("sold", [True, False])
@pytest.mark.parametrize("name", ["lua", "segmented-redis"])
def test_after_a_full_redis_a_unit_is_sold_out_if_it_is_sold_and_else_for_sale(
    ledger: Ledger, full: Callable[[], AbstractContextManager[None]], name: str, sold: bool
) -> None:
    """A full Redis cannot end the reservation of the last unit. The next buyer is answered at once nevertheless."""
    strategy, filled = preheated(name, {"a": 1}), ExitStack()
    save = ledger.save if sold else fails(DataError("it cannot be saved"))
    with filled, nullcontext() if sold else pytest.raises(DataError):
        strategy.place(new_request(("a", 1)), after(lambda: filled.enter_context(full()), save))
        assert registry.counters().order_ids(), "Redis was full"
    with pytest.raises(SoldOut) if sold else nullcontext():
        strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(0, 1))
