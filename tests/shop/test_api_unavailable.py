"""Without Redis or Postgres, requests that need the missing server get 503 with Retry-After. Other requests work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import InternalError, OperationalError, connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from rest_framework.test import APIClient

from inventory.caching import Cache
from inventory.strategies import registry
from shop import conservation
from shop.api import health
from shop.orders import place
from shop.orders.queued import save_queued
from shop.orders.saving import Saver, save
from shop.postgres import BoundedConnection
from shop.sales import offers
from tests.factories import SAVING, OnSale, close_connections, elsewhere, fast_and_slow, on_sale, orders_in
from tests.locking.proxy import Proxy
from tests.shop.conftest import Buyer, Gone, Provider, assert_problem, order_body, payment, raising
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

NEEDS_REDIS = {"lua", "redis-lock", "segmented-redis", "segmented-lock"}


@pytest.mark.parametrize("refuses_writes", [False, True], ids=["no answer", "read-only"])
@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_without_redis_strategies_that_need_it_answer_503(
    buyer: Buyer, full: Gone, redis_gone: Gone, name: str, refuses_writes: bool
) -> None:
    offer = on_sale({"a": 2}, strategy=name)
    with full() if refuses_writes else redis_gone():
        answer = buyer.order(order_body(offer, a=1), key="mine")
        if name in NEEDS_REDIS:
            assert_problem(answer, 503, "unavailable")
            assert orders_in() == 0
        else:
            assert answer.status_code == 201
            assert_found_by_a_retry(buyer, offer)
        assert [buyer.get(f"/api/{path}/").status_code for path in ("orders", "sales")] == [200, 200]
    assert_bought_once(buyer, offer)


def assert_found_by_a_retry(buyer: Buyer, offer: OnSale) -> None:
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
    assert_bought_once(buyer, offer)


def assert_bought_once(buyer: Buyer, offer: OnSale) -> None:
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201
    assert [(row.sold, row.conserved) for row in conservation.figures()] == [(1, True)]


CALLS: dict[str, Callable[[Buyer, dict[str, Any]], Any]] = {
    "order": lambda buyer, body: buyer.order(body),
    "list": lambda buyer, body: buyer.get("/api/orders/"),
    "look": lambda buyer, body: buyer.get(f"/api/orders/{uuid4()}/"),
    "pay": lambda buyer, body: buyer.post(f"/api/orders/{uuid4()}/pay/"),
    "cancel": lambda buyer, body: buyer.post(f"/api/orders/{uuid4()}/cancel/"),
    "payment": lambda buyer, body: Provider().reports(payment(uuid4())),
    "sales": lambda buyer, body: buyer.get("/api/sales/"),
    "sale": lambda buyer, body: buyer.get("/api/sales/1/"),
    "token": lambda buyer, body: buyer.post("/api/token/", {"username": "a", "password": "b"}, format="json"),
}


def test_without_postgres_every_answer_is_503(
    buyer: Buyer, postgres_gone: Gone, settings: Any, subtests: pytest.Subtests
) -> None:
    body = order_body(on_sale({"a": 1}), a=1)
    for name, call in CALLS.items():
        settings.PAYMENT_SECRET = "shared" if name == "payment" else ""
        with subtests.test(name), postgres_gone():
            assert_problem(call(buyer, body), 503, "unavailable")
    assert orders_in() == 0


@pytest.fixture
def postgres_only_reads(db: None) -> Iterator[None]:
    """Make Postgres read-only, like a standby or a server whose disk is full."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        database = connection.ops.quote_name(cursor.fetchone()[0])
        cursor.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    connection.close()
    yield
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = off")
        cursor.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    close_connections()


def test_a_read_only_postgres_takes_no_orders_and_loses_none(
    buyer: Buyer, request: pytest.FixtureRequest, settings: Any
) -> None:
    settings.OFFER_TTL, settings.ORDER_RATE = 60, 100
    offers = {name: on_sale({name: 1}, strategy=name) for name in registry.NAMES}
    location = buyer.order(order_body(offers["lua-queue"], **{"lua-queue": 1})).headers["Location"]
    request.getfixturevalue("postgres_only_reads")
    request.getfixturevalue("look_each_time")
    for name in SAVING:
        assert_problem(buyer.order(order_body(offers[name], **{name: 1})), 503, "unavailable")
    with pytest.raises(InternalError):
        save_queued()
    with pytest.raises(CommandError, match="read-only"):
        call_command("reconcile")
    assert buyer.get(location).json()["state"] == "queued"
    assert registry.counters().reserved() == {"lua-queue": 1}
    answer = buyer.get("/health/")
    assert (answer.status_code, answer.json()) == (503, {"postgres": False, "redis": True})


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_without_postgres_nothing_is_taken_in_redis(buyer: Buyer, postgres_gone: Gone, name: str) -> None:
    offer = on_sale({"a": 1}, strategy=name)
    assert offers.get(offer.sale) is not None
    with postgres_gone():
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "unavailable")
    counters = registry.counters()
    assert counters.left(["a"]) == {"a": 1 if name == "lua" else None}
    assert counters.reserved() == {}
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_a_lost_commit_answer_is_503_and_a_retry_finds_the_order(
    buyer: Buyer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    offer = on_sale({"a": 2}, strategy=name)

    def save_and_lose(requests: Any) -> Any:
        transaction.on_commit(raising(OperationalError("the answer was lost")))
        return save(requests)

    with monkeypatch.context() as patch:
        patch.setattr(place, "save", save_and_lose)
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "unavailable")
    assert_found_by_a_retry(buyer, offer)


@pytest.mark.parametrize("name", ["guarded-update", "group-commit", "redis-lock"])
def test_a_lost_answer_of_the_one_statement_is_503_and_a_retry_finds_the_order(
    buyer: Buyer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    offer = on_sale({"a": 2}, strategy=name)
    at_once = Saver.at_once

    def save_and_lose(*arguments: Any) -> Any:
        assert at_once(*arguments)
        raise OperationalError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Saver, "at_once", save_and_lose)
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "unavailable")
    assert_found_by_a_retry(buyer, offer)


@pytest.mark.usefixtures("in_steps")
@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_a_request_that_exceeds_a_postgres_limit_is_503(buyer: Buyer, name: str) -> None:
    """A request gets 503 if its transaction idles for longer than Postgres allows."""
    offer = on_sale({"a": 2}, strategy=name)

    def pause(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INSERT INTO shop_order " in sql:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                mine = cursor.fetchone()[0]
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '10ms'")
            wait_for(lambda: not elsewhere(lambda: is_there(mine)), "Postgres to end the connection")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(pause):
        answer = buyer.order(order_body(offer, a=1), key="mine")
    assert_problem(answer, 503, "unavailable")
    assert orders_in() == 0
    assert_bought_once(buyer, offer)


def is_there(backend: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [backend])
        return cursor.fetchone() is not None


# Health checks: their cost, and the difference between live, ready and started


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget earlier checks, as in a new process."""
    monkeypatch.setattr(health, "cache", Cache())
    monkeypatch.setattr(health.Started, "started", False)


@pytest.fixture
def look_each_time(new_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the cache of the health check."""
    monkeypatch.setattr(health, "TTL", 0)


@pytest.mark.usefixtures("look_each_time")
def test_health_names_the_server_that_does_not_answer(
    visitor: APIClient, redis_gone: Gone, postgres_gone: Gone
) -> None:
    def ask() -> tuple[int, dict[str, bool]]:
        answer = visitor.get("/health/")
        return answer.status_code, answer.json()

    assert ask() == (200, {"postgres": True, "redis": True})
    with redis_gone():
        assert ask() == (503, {"postgres": True, "redis": False})
    with postgres_gone():
        assert ask() == (503, {"postgres": False, "redis": True})


@pytest.fixture
def pooled() -> Iterator[Proxy]:
    """A proxy to Postgres for this thread's connection, with a pool that waits longer than any test."""
    there = connections["default"]
    host, port = there.settings_dict["HOST"], there.settings_dict["PORT"]
    proxy = Proxy(f"{host}/.s.PGSQL.{port}")
    options = {**there.settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 1, "timeout": 600}}
    through = {**there.settings_dict, "HOST": proxy.host, "PORT": proxy.port, "OPTIONS": options}
    connections["default"] = type(there)(through, "default")
    try:
        yield proxy
    finally:
        proxy.close()
        connections["default"].close()
        connections["default"].close_pool()
        connections["default"] = there


@pytest.mark.usefixtures("look_each_time")
@pytest.mark.parametrize("away", [Proxy.refuse, Proxy.hang], ids=["refuses", "hangs"])
@pytest.mark.parametrize("before", [True, False], ids=["connected before", "never connected"])
def test_health_does_not_wait_for_the_pool(
    visitor: APIClient, pooled: Proxy, away: Callable[[Proxy], None], before: bool
) -> None:
    if before:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.close()
        assert visitor.get("/health/").status_code == 200
    away(pooled)
    answer = visitor.get("/health/")
    assert (answer.status_code, answer.json()) == (503, {"postgres": False, "redis": True})
    pooled.restore()
    assert visitor.get("/health/").status_code == 200


@pytest.mark.usefixtures("new_process")
def test_forty_checks_at_once_open_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made, connect = [], BoundedConnection.connect

    def counted(**parameters: Any) -> Any:
        made.append(connect(**parameters))
        return made[-1]

    monkeypatch.setattr(BoundedConnection, "connect", counted)
    monkeypatch.setattr(health, "TTL", 600.0)
    with ThreadPoolExecutor(40) as clients:
        statuses = list(clients.map(lambda _: APIClient().get("/health/").status_code, range(40)))
    assert (set(statuses), len(made)) == ({200}, 1)
    # Negative control: without a cache, each check opens a connection.
    monkeypatch.setattr(health, "TTL", 0)
    health.cache.clear()
    assert [APIClient().get("/health/").status_code for _ in range(3)] == [200] * 3
    assert len(made) == 1 + 3


@pytest.mark.usefixtures("new_process")
def test_while_one_caller_checks_others_get_the_last_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise frequent checks of a server that does not answer would keep all threads of the process waiting."""
    checking, go_on = threading.Event(), threading.Event()

    def check() -> dict[str, bool]:
        checking.set()
        assert go_on.wait(WAIT_TIMEOUT)
        return {"postgres": False, "redis": True}

    health.cache.put("servers", {"postgres": True, "redis": True}, refresh_at=0.0, expires_at=0.0)
    monkeypatch.setattr(health, "_check", check)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(health.readiness)
        assert checking.wait(WAIT_TIMEOUT)
        assert health.readiness() == {"postgres": True, "redis": True}
        go_on.set()
        assert first.result(WAIT_TIMEOUT) == {"postgres": False, "redis": True}


@pytest.mark.usefixtures("new_process")
def test_started_waits_for_servers_and_migrations_and_then_stays(visitor: APIClient, postgres_gone: Gone) -> None:
    with postgres_gone():
        assert visitor.get("/health/started/").status_code == 503
    health.cache.clear()
    applied = MigrationRecorder.Migration.objects.filter(app="shop").latest("pk")
    applied.delete()
    try:
        assert visitor.get("/health/started/").status_code == 503
    finally:
        applied.save(force_insert=True)
    assert visitor.get("/health/started/").status_code == 200
    with postgres_gone():
        assert visitor.get("/health/started/").status_code == 200
