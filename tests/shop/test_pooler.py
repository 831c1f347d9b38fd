"""A real PgBouncer before Postgres, in both modes: everything works, or the shop says at its start what to set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import OperationalError, connection, connections, transaction
from rest_framework.test import APIClient

from inventory.caching import Cache
from inventory.errors import TryAgain, UnknownStrategy
from inventory.outages import is_away
from inventory.strategies import group_commit, registry
from inventory.strategies.locks import conninfo
from loadtest.tokens import access_token
from locking.postgres import AdvisoryLock
from servers import postgres
from shop import limits
from shop.api import health
from shop.look import UNEXPECTED, look
from shop.models import Order, Product
from shop.orders.queued import save_queued
from shop.runtime.celery import app
from shop.sales import offers
from tests.factories import (
    OF_THE_SHOP,
    at_once,
    begin,
    close_connections,
    count_by_kind,
    interleaved,
    new_customer,
    new_request,
    on_sale,
    preheated,
)
from tests.locking.proxy import Proxy
from tests.pgbouncer import PgBouncer, needs_pgbouncer, running_pgbouncer
from tests.shop.conftest import assert_conserved, buy, order_body
from tests.shop.test_settings import read
from tests.shop.test_silent_postgres import proxy
from tests.shop.web_server import CHECKOUT, ask, web_server
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis"), needs_pgbouncer]

__all__ = ["proxy"]  # the fixture

MODES = ["transaction", "session"]
SESSION_LOCKS = {"insert-lock", "lock-table", "session-lock"}
NAMES = sorted(set(registry.NAMES) - SESSION_LOCKS)
IGNORING = "ignore_startup_parameters = options"

# How the connections of this process reach Postgres


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Through = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Through:
    """Lead this process's connections through a PgBouncer during a `with` block."""

    @contextmanager
    def through(pooler: PgBouncer, *, known: bool = True, web: bool = False) -> Iterator[None]:
        """Use a pooler.

        Args:
            known: whether DATABASE_POOLER is set.
            web: whether the connections are those of a web server.
        """
        given = {"DATABASE_POOLER": str(int(known)), "DATABASE_POOL": "1" if web else "0", "LAB_ENABLED": "0"}
        with monkeypatch.context() as environment:
            there = read(environment, DATABASE_URL=pooler.url, **given)["DATABASES"]["default"]
        there["OPTIONS"]["pool"] = False
        direct = connections["default"]
        changed = {**connections.settings["default"], **there}
        with monkeypatch.context() as patched:
            settings.DATABASE_POOLER = known
            patched.setitem(connections.settings, "default", changed)
            connections["default"] = type(direct)(changed, "default")
            try:
                yield
            finally:
                connections["default"].close()
                connections["default"] = direct
                settings.DATABASE_POOLER = False

    return through


@pytest.fixture
def pooled(mode: str, through: Through) -> Iterator[PgBouncer]:
    """A PgBouncer that all connections of this process use."""
    with running_pgbouncer(mode) as pooler, through(pooler):
        yield pooler


@contextmanager
def role_with(**values: str) -> Iterator[None]:
    """Have Postgres apply these settings to each new session of the role."""
    database = django_settings.DATABASES["default"]

    def alter(*actions: str) -> None:
        with postgres.connect(django_settings.RUN_FOLDER.postgres) as direct:
            for action in actions:
                direct.execute(f"ALTER ROLE {database['USER']} IN DATABASE {database['NAME']} {action}")

    alter(*(f"SET {name} = '{value}'" for name, value in values.items()))
    try:
        yield
    finally:
        alter(*(f"RESET {name}" for name in values))
        close_connections()


def limited() -> AbstractContextManager[None]:
    """Give the role the limits of the web server."""
    return role_with(**{name: f"{seconds}s" for name, seconds in limits.POSTGRES.items()})


# Strategies, locks and jobs


def buy_in_the_end(offer: Any) -> Any:
    """Buy, and try again while the shop is busy."""
    while True:
        try:
            return buy(offer, a=1, b=1)
        except TryAgain:
            continue


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *(pytest.param("transaction", name, marks=() if name in OF_THE_SHOP else pytest.mark.slow) for name in NAMES),
        *(pytest.param("session", name, marks=() if name == "lua" else pytest.mark.slow) for name in NAMES),
    ],
    indirect=["mode"],
)
def test_every_strategy_sells_the_last_unit_once(pooled: PgBouncer, name: str) -> None:
    """Eight customers buy the last five units."""
    offer = on_sale({"a": 5, "b": 20}, strategy=name)
    results = at_once(*[partial(buy_in_the_end, offer)] * 8)
    save_queued()
    assert {type(result).__name__ for result in results} == {"Placed", "SoldOut"}
    assert Order.objects.filter(state="pending").count() == 5
    assert_conserved()


@pytest.mark.parametrize("name", ["advisory-lock", "optimistic", "row-lock"])
def test_a_lock_of_a_transaction_excludes(pooled: PgBouncer, name: str) -> None:
    """A transaction's lock excludes: the second customer waits in Postgres. Control: `optimistic` takes no lock."""
    offer = on_sale({"a": 2}, strategy=name)
    offers.get(offer.sale)  # Fill the cache, because reading the offer could also block the second customer.
    started: list[Future[Any]] = []
    done: list[bool] = []
    statement = {"advisory-lock": "pg_advisory_xact_lock", "row-lock": "FOR NO KEY UPDATE"}.get(name, "SELECT")

    def second() -> None:
        started.append(begin(pool, partial(buy, offer, a=1)))
        done.append(started[0].done())

    with ThreadPoolExecutor(1) as pool:
        with interleaved(second, after=statement):
            buy(offer, a=1)
        started[0].result(WAIT_TIMEOUT)
    assert done == [name == "optimistic"]
    assert_conserved()


def test_a_lock_of_a_session_does_not_exclude_in_transaction_mode(through: Through) -> None:
    """Control: a session's lock excludes in session mode only, so transaction mode must not offer these locks."""
    for mode, excludes in (("transaction", False), ("session", True)):
        with running_pgbouncer(mode, size=1 if mode == "transaction" else 2) as pooler, through(pooler):
            first, second = AdvisoryLock(conninfo(), "one"), AdvisoryLock(conninfo(), "one")
            with first.hold(timeout=5):
                lease = second.acquire(blocking=False)
                assert (lease is None) is excludes
                if lease:
                    lease.release()


def test_locks_of_a_session_are_refused_by_name(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(registry.known_names())
    settings.DATABASE_POOLER = True
    known = registry.known_names()
    assert before - set(known) == SESSION_LOCKS
    monkeypatch.setattr(registry, "NAMES", known)
    monkeypatch.setattr(registry, "_loaded", {})
    for name in SESSION_LOCKS:
        with pytest.raises(UnknownStrategy, match=rf"{name}.* DATABASE_POOLER"):
            registry.get(name)


def test_every_task_of_beat_runs(pooled: PgBouncer, caplog: pytest.LogCaptureFixture) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue", preheat=False)
    tasks = [app.tasks[entry["task"]] for entry in django_settings.CELERY_BEAT_SCHEDULE.values()]
    assert len(tasks) == 6
    app.tasks["shop.runtime.tasks.advance_sales"].apply()
    placed = buy(offer, a=1)
    for task in tasks * 3:
        assert task.apply().successful(), task.name
    assert Order.objects.get().pk == placed.order.pk
    assert [record.getMessage() for record in caplog.records if record.name.startswith(("shop", "inventory"))] == []
    assert_conserved()


def test_commands_run(pooled: PgBouncer, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("migrate", verbosity=0, interactive=False)
    call_command("sample")
    call_command("reconcile")
    call_command("audit", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])


# What else relies on a session


def test_a_long_list_is_read_in_parts(through: Through) -> None:
    """A long list is read in parts, as the admin does. Control: a server-side cursor ends with its transaction."""
    for number in range(5):
        Product.objects.create(sku=str(number), name=str(number))
    meeting = threading.Barrier(2, timeout=WAIT_TIMEOUT)

    def hold_a_session() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            meeting.wait()

    with running_pgbouncer("transaction") as pooler, through(pooler):
        # Make the pooler open two sessions. With one, the control would get the session that has its cursor, and pass.
        assert at_once(hold_a_session, hold_a_session) == [None, None]
        assert at_once(read_in_parts, read_in_parts) == [5, 5]
        connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = False
        with pytest.raises(psycopg.errors.InvalidCursorName):
            read_in_parts()


def read_in_parts() -> int:
    found = 0
    for _ in Product.objects.iterator(chunk_size=1):
        found += 1
        Product.objects.exists()  # Make the next part use another session.
    return found


def test_a_short_lock_timeout_of_a_batch_holds_in_its_own_transactions_alone(through: Through) -> None:
    preheated("group-commit", {"a": 9})
    seen: list[str] = []

    def fail(orders: Sequence[Any]) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            seen.append(cursor.fetchone()[0])
            if len(orders) > 1:
                cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")
        return {}

    with running_pgbouncer("transaction", "min_pool_size = 3") as pooler, through(pooler):
        at_once(*[lambda: Product.objects.exists()] * 8)  # opens several sessions
        assert group_commit.commit([new_request(("a", 1)) for _ in range(4)], fail) == [None] * 4
        after = {timeout() for _ in range(20)}
    assert seen[1:] == ["100ms"] * 4
    assert after == {seen[0]}


def timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])


def test_every_session_has_the_time_zone_of_the_shop(pooled: PgBouncer) -> None:
    """Every session has the shop's time zone: Django sets it when it connects, and PgBouncer in each session."""
    with role_with(timezone="Asia/Kolkata"):
        connection.close()
        at_once(*[lambda: Product.objects.exists()] * 8)
        with connection.cursor() as cursor:
            for _ in range(20):
                cursor.execute("SHOW TimeZone")
                assert cursor.fetchone() == ("UTC",)


def test_a_server_that_the_pooler_cannot_reach_is_away(mode: str, through: Through, proxy: Proxy) -> None:
    server = (proxy.host, proxy.port)
    with running_pgbouncer(mode, "query_wait_timeout = 1", server=server) as pooler, through(pooler):
        Product.objects.exists()
        proxy.refuse()
        with pytest.raises(OperationalError) as raised:
            Product.objects.exists()
    assert getattr(raised.value.__cause__, "sqlstate", None) == "08P01"
    assert is_away(raised.value)


# The check at the start


def test_a_pooler_does_not_hide_that_postgres_is_away_or_read_only(
    mode: str, through: Through, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The health check notices that Postgres is away or read-only, although the pooler accepts connections."""

    def ready() -> Any:
        monkeypatch.setattr(health, "cache", Cache())
        return APIClient().get("/health/").json()

    with limited(), running_pgbouncer(mode, server=(proxy.host, proxy.port)) as pooler, through(pooler):
        assert ready() == {"postgres": True, "redis": True}
        connection.close()
        with role_with(default_transaction_read_only="on"):
            proxy.cut()
            wait_for(lambda: look(2).version, "PgBouncer to connect again")
            assert ready() == {"postgres": False, "redis": True}
        proxy.refuse()
        assert look(1).version is None
        assert ready() == {"postgres": False, "redis": True}


@pytest.mark.parametrize("more", ["", IGNORING], ids=["refusing", "ignoring"])
@pytest.mark.parametrize("web", [True, False], ids=["web", "worker"])
def test_a_pooler_that_no_setting_names_is_found(
    mode: str, more: str, web: bool, through: Through, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look(5).wrong == "", "the control"
    monkeypatch.setattr(health, "cache", Cache())
    with running_pgbouncer(mode, more) as pooler, through(pooler, known=False, web=web):
        assert look(5, web=web).wrong == UNEXPECTED
        answer = APIClient().get("/health/")
        assert (answer.status_code, answer.json()["pooler"]) == (503, False)


def test_limits_that_are_not_in_force_are_found(mode: str, through: Through) -> None:
    with running_pgbouncer(mode) as pooler, through(pooler):
        assert look(5, web=False).wrong == ""
        wrong = look(5).wrong
    assert wrong.startswith("Requests would wait too long for Postgres")
    advice = wrong.partition("restart it): ")[2]
    assert advice.count("ALTER ROLE") == len(limits.POSTGRES)
    with limited():  # Reset the role afterwards.
        for statement in advice.split("; "):
            with connection.cursor() as cursor:
                cursor.execute(statement)
        with running_pgbouncer(mode) as pooler, through(pooler):
            assert look(5).wrong == ""
            at_once(*[timeout] * 8)
            assert {timeout() for _ in range(20)} == {f"{limits.POSTGRES['lock_timeout']}s"}


def test_looser_limits_are_found(through: Through) -> None:
    with limited(), role_with(statement_timeout="1h"), running_pgbouncer("transaction") as pooler, through(pooler):
        wrong = look(5).wrong
    assert "SET statement_timeout = '10s'" in wrong
    assert "lock_timeout" not in wrong


def test_a_start_parameter_of_ones_own_is_named(through: Through, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c geqo=off")
    with running_pgbouncer("transaction") as pooler, through(pooler):
        assert "PGOPTIONS" in look(5).wrong


# Whole processes


def run(pooler: PgBouncer, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the shop until it ends."""
    command = [sys.executable, *arguments]
    environment = process_environment(DATABASE_URL=pooler.url, **given)
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=60)


def process_environment(**given: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return {**mine, "SECRET_KEY": django_settings.SECRET_KEY, "LAB_ENABLED": "0", **given}


PROGRAMS = {
    "serve": ("manage.py", "serve", "--port", "9"),
    "status": ("manage.py", "servers", "status"),
    "audit": ("manage.py", "audit"),
    "worker": ("-m", "celery", "-A", "shop", "worker", "--pool", "threads"),
    "beat": ("-m", "celery", "-A", "shop", "beat", "--schedule"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_says_what_to_set(tmp_path: Path, name: str) -> None:
    command = [*PROGRAMS[name], *([str(tmp_path / "schedule")] if name == "beat" else [])]
    with running_pgbouncer("transaction", IGNORING) as pooler:
        refused = run(pooler, *command)
        assert UNEXPECTED in refused.stderr
        assert refused.returncode == (2 if name in {"serve", "audit"} else 1)
        if name == "serve":
            without = run(pooler, *command, DATABASE_POOLER="1")
            assert "ALTER ROLE postgres IN DATABASE" in without.stderr
            assert without.returncode == refused.returncode
    if name == "status":
        with limited(), running_pgbouncer("transaction") as pooler:
            assert run(pooler, *command, DATABASE_POOLER="1").returncode == 0, "the control"


@contextmanager
def shop_through(pooler: PgBouncer) -> Iterator[int]:
    """Run the web server and a worker through a pooler. Yield the port."""
    given = {"DATABASE_URL": pooler.url, "DATABASE_POOLER": "1", "LAB_ENABLED": "0", "ORDER_RATE": "100"}
    given["LOCK_FOLDER"] = django_settings.LOCK_FOLDER
    worker = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool", "threads", "--loglevel", "error"]
    with (
        web_server(**given) as (port, _),
        subprocess.Popen(worker, cwd=CHECKOUT, env=process_environment(**given)) as at,
    ):
        try:
            yield port
        finally:
            at.terminate()


def order_body_of(strategy: str, sku: str) -> str:
    """Put two products on sale. Return the body of an order for both."""
    offer = on_sale({f"{sku}-1": 30, f"{sku}-2": 30}, strategy=strategy)
    return json.dumps(order_body(offer, **dict.fromkeys(offer.products, 1)))


@pytest.mark.slow
def test_no_request_is_answered_5xx_and_limits_hold(mode: str) -> None:
    """No request gets a 5xx: 12 customers per strategy, eight at a time, four reads each. A locked row is a 503."""
    reads = ("/api/orders/", "/api/sales/", "/api/orders/", "/health/")

    def place(body: str) -> list[int]:
        token = f"Bearer {access_token(new_customer())}"
        connection.close()
        headers = {"Authorization": token, "Content_Type": "application/json", "Idempotency_Key": str(uuid4())}
        placed = ask(port, "POST", "/api/orders/", body, **headers)[0]
        return [placed, *(ask(port, "GET", path, Authorization=token)[0] for path in reads)]

    with (
        limited(),
        role_with(lock_timeout="2s"),
        running_pgbouncer(mode) as pooler,
        shop_through(pooler) as port,
        ThreadPoolExecutor(8) as customers,
    ):
        for number, name in enumerate(NAMES, start=1):
            body = order_body_of(name, name)
            answers = [status for statuses in customers.map(place, [body] * 12) for status in statuses]
            assert count_by_kind(answers) == {"202" if name == "lua-queue" else "201": 12, "200": 48}, name
            wait_for(lambda placed=12 * number: Order.objects.count() == placed, "the worker to save all orders")
        assert_conserved()
        body = order_body_of("guarded-update", "limited")
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT FROM inventory_stockitem FOR UPDATE")
            assert customers.submit(place, body).result()[0] == 503
        assert place(body)[0] == 201


def test_without_the_setting_orders_fail_in_transaction_mode(through: Through) -> None:
    """Negative control: without the setting, a statement is prepared in one session and executed in another."""
    with running_pgbouncer("transaction", IGNORING) as pooler, through(pooler, known=False):
        offer = on_sale({"a": 1000})

        def buy_often() -> None:
            for _ in range(10):
                buy(offer, a=1)

        results = at_once(*[buy_often] * 8)
    assert any("prepared statement" in str(error) for error in results)
