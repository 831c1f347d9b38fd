"""Sandboxes touch no shop data, have one user at a time, and report why none can be used."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import redis
from django.apps import apps
from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from django.test import Client
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_django import DjangoDbBlocker
from redis.connection import parse_url

from lab.apps import check_sandbox_count
from lab.claims.runs import replay
from lab.sandbox import databases, pool
from lab.sandbox.connections import address, backends_of
from lab.sandbox.databases import MOST, SandboxesBusy, redis_url_of
from lab.sandbox.pool import borrowed, for_a_command, open_sandbox
from lab.sandbox.redis_database import MARK, NotOurs
from lab.sandbox.sandbox import IN_USE, Sandbox
from lab.site.pages import replays
from servers import ServerError
from servers.postgres import DATABASE
from shop.runtime.environment import database
from tests.lab.schedule_support import manage
from tests.waiting import WAIT_TIMEOUT, wait_for

NUMBER = 4
"""Number of the first sandbox for these tests. Visitors and commands use sandboxes with lower numbers."""
DROP = "DROP DATABASE IF EXISTS {} WITH (FORCE)"


@pytest.fixture(autouse=True)
def _databases(servers: object, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Any:
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def opened_sandbox() -> Iterator[Sandbox]:
    with closing(open_sandbox(NUMBER)) as sandbox:
        yield sandbox


@contextmanager
def server() -> Iterator[psycopg.Connection[Any]]:
    """A connection to the database `postgres`, through which tests create other databases."""
    with databases.server(databases.shops_database(), time.monotonic() + 5) as connection:
        yield connection


def end_backend(connection: psycopg.Connection[Any]) -> None:
    with server() as admin:
        ended = admin.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid]).fetchone()
        assert ended == (True,)


def database_name(number: int = NUMBER) -> str:
    """Return the name of a sandbox's Postgres database."""
    return f"{databases.shops_database()['NAME']}_lab_{number}"


def run(connection: psycopg.Connection[Any], statement: str, *names: str, comment: str = "") -> None:
    """Run a statement. A quoted name replaces each `{}`, and the quoted comment replaces `{comment}`."""
    quoted = map(sql.Identifier, names)
    connection.execute(sql.SQL(statement).format(*quoted, comment=sql.Literal(comment)))


# The Redis database of a sandbox

SHOPS = {
    "unix://user:secret@/run/valkey.sock?db=15&socket_timeout=2": 15,
    "unix:///run/valkey.sock?socket_timeout=2&%64b=14": 14,
    "redis://host": 0,
    "redis://host/3?db=13&db=2": 13,
    "redis://[::1]:6380/1#shop": 1,
    "rediss://host/12?ssl_cert_reqs=none": 12,
    "redis://host/77": 77,
    "redis://host/no-number": 0,
}


@pytest.mark.parametrize("shop", SHOPS)
def test_each_sandbox_has_a_redis_database_that_is_not_the_shops(shop: str) -> None:
    expected = parse_url(shop)
    assert expected.pop("db", 0) == SHOPS[shop]
    numbers = []
    for number in range(MOST):
        found = parse_url(redis_url_of(number, shop))
        numbers.append(found.pop("db"))
        assert found == expected
    assert len(set(numbers)) == MOST
    assert set(numbers) <= {*range(16)} - {SHOPS[shop]}


def test_a_sandbox_without_a_redis_database_is_refused(settings: Any) -> None:
    for number, errors in ((0, 1), (1, 0), (MOST, 0), (MOST + 1, 1)):
        settings.LAB_SANDBOXES = number
        assert len(check_sandbox_count()) == errors
    for number in (-1, MOST):
        with pytest.raises(ServerError, match=r"no sandbox .*LAB_SANDBOXES to 15 or less"):
            open_sandbox(number)
    with pytest.raises(ServerError, match=r"out of range.*`databases 16`"):
        open_sandbox(NUMBER, f"{django_settings.REDIS_LOCATION}?db=16")


def test_a_redis_that_refuses_a_sandbox_for_another_reason_is_not_told_to_have_more_databases() -> None:
    client = redis.Redis.from_url(django_settings.REDIS_LOCATION)
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(ServerError, match="replicas") as refused:
            open_sandbox(NUMBER)
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert "databases" not in str(refused.value)


@pytest.mark.parametrize("query", ["", f"?db={15 - NUMBER}"])
def test_an_experiment_leaves_the_shops_redis_alone(settings: Any, query: str) -> None:
    settings.REDIS_LOCATION += query
    shop = redis.Redis.from_url(settings.REDIS_LOCATION)
    shop.set("the shop's", "kept")
    try:
        with closing(open_sandbox(NUMBER)) as sandbox:
            assert replay("setnx", [], sandbox, to_the_end=True).steps
        assert shop.get("the shop's") == b"kept"
    finally:
        shop.flushdb()


# Data that is not the lab's


@pytest.fixture(params=[NUMBER])
def foreign(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """The Redis database of a sandbox, holding a key that does not belong to the lab."""
    client = redis.Redis.from_url(redis_url_of(request.param, django_settings.REDIS_LOCATION))
    client.flushdb()
    client.set("session", "foreign")
    yield client
    client.flushdb()


def test_foreign_keys_in_redis_are_kept(foreign: redis.Redis) -> None:
    """Foreign keys are kept, even those of another shop's lab: the mark in Redis names the owner."""
    with pytest.raises(NotOurs, match=rf"(?s)database {15 - NUMBER} of /.*\.sock holds 1 keys .*Lower LAB_SANDBOXES"):
        open_sandbox(NUMBER)
    foreign.set(MARK, "Last Unit empties this: shop_lab_0 of Postgres 1")
    with pytest.raises(NotOurs, match="holds 2 keys"):
        open_sandbox(NUMBER)
    assert (sorted(foreign.keys()), foreign.get("session")) == ([MARK.encode(), b"session"], b"foreign")
    foreign.flushdb()
    open_sandbox(NUMBER).close()
    assert foreign.dbsize() == 0, "without the mark: what comes while it is closed is not the lab's"


def test_keys_that_replace_the_labs_are_kept_by_the_next_schedule(opened_sandbox: Sandbox) -> None:
    other = redis.Redis.from_url(opened_sandbox.redis_url)
    other.flushdb()
    other.set("session", "foreign")
    with pytest.raises(NotOurs):
        replay("setnx", [], opened_sandbox, to_the_end=True)
    opened_sandbox.close()
    assert other.get("session") == b"foreign"
    other.flushdb()


def test_a_released_sandbox_is_empty_and_used_again(opened: list[int], settings: Any) -> None:
    settings.LAB_SANDBOXES = 1
    for _ in range(2):
        with borrowed() as sandbox:
            assert replay("setnx", [], sandbox, to_the_end=True).steps
        assert sandbox.redis.dbsize() == 0
    assert opened == [0]


def test_keys_that_a_crash_of_the_lab_leaves_are_emptied() -> None:
    sandbox = open_sandbox(NUMBER)
    assert replay("setnx", ["A", "crash A"], sandbox).steps
    left = redis.Redis.from_url(sandbox.redis_url)
    assert left.dbsize() > 1
    end_backend(sandbox.observer)  # Lose the lock without a release, as when the process dies.
    sandbox.close()
    assert left.dbsize() > 1
    with closing(open_sandbox(NUMBER)):
        assert left.keys() == [MARK.encode()]


@pytest.mark.parametrize(("slug", "schedule"), [("setnx", ["A", "B"]), ("lua", ["A", "restart", "A"])])
def test_the_mark_is_not_shown_and_survives_a_restart(opened_sandbox: Sandbox, slug: str, schedule: list[str]) -> None:
    trace = replay(slug, schedule, opened_sandbox, faults=["restart"])
    assert [step.choice for step in trace.steps] == schedule
    shown = {row["name"] for step in trace.steps for row in step.state}
    assert shown
    assert MARK not in shown
    assert opened_sandbox.redis.exists(MARK)


@pytest.mark.parametrize("foreign", [0], indirect=True)
def test_with_foreign_data_a_page_says_so_and_a_command_takes_another_sandbox(
    client: Client, settings: Any, opened: list[int], foreign: redis.Redis
) -> None:
    settings.LAB_SANDBOXES = 1
    answer = client.get("/lab/rungs/no-lock/play/", {"schedule": "A"})
    assert answer.status_code == 503
    assert "Retry-After" not in answer.headers
    settings.LAB_SANDBOXES = 0  # The command tries the same sandbox first.
    with for_a_command():
        assert opened == [0, 0, 1]
    assert foreign.get("session") == b"foreign"


@pytest.fixture
def other_database() -> Iterator[Callable[..., None]]:
    """Create a foreign Postgres database under the name that sandbox `NUMBER` would use."""
    with server() as admin:

        def create(*statements: str, comment: str = "") -> None:
            run(admin, DROP, database_name())
            run(admin, "CREATE DATABASE {}", database_name())
            run(admin, "COMMENT ON DATABASE {} IS {comment}", database_name(), comment=comment)
            for statement in statements:
                in_sandbox(statement)

        yield create
        run(admin, DROP, database_name())


def in_sandbox(statement: str) -> list[Any]:
    """Run a statement in the Postgres database of sandbox `NUMBER`."""
    there = make_conninfo("", **address(databases.shops_database() | {"NAME": database_name()}))
    with psycopg.connect(there, autocommit=True) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


@pytest.mark.parametrize("comment", ["", "The payroll"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE wages AS SELECT 1 AS paid",
        "SELECT 1",  # An empty database is foreign, too, if its comment does not name the lab.
    ],
)
def test_a_foreign_postgres_database_is_kept(other_database: Callable[..., None], comment: str, statement: str) -> None:
    other_database(statement, comment=comment)
    oid = "SELECT oid FROM pg_database WHERE datname = current_database()"
    before = in_sandbox(oid)
    with pytest.raises(NotOurs, match=rf"_lab_{NUMBER} is not the lab's.*Rename it, or drop it yourself"):
        open_sandbox(NUMBER)
    assert in_sandbox(oid) == before


@pytest.mark.parametrize("tables", ["", "lab.0001_initial"])
def test_a_database_of_the_labs_with_other_tables_is_replaced(other_database: Callable[..., None], tables: str) -> None:
    other_database("CREATE TABLE shop_product AS SELECT 1", comment=f"{databases.MADE}{tables}")
    with closing(open_sandbox(NUMBER)) as sandbox:
        assert replay("guarded-update", [], sandbox, to_the_end=True).ledger


def test_an_unfinished_database_is_dropped_and_no_other(other_database: Callable[..., None]) -> None:
    name = database_name()
    unfinished, foreign = f"{name}_dead", f"{name}_copy"
    with server() as admin:
        for each in (unfinished, foreign):
            run(admin, "CREATE DATABASE {}", each)
        run(admin, "COMMENT ON DATABASE {} IS {comment}", unfinished, comment=databases.MADE)
        try:
            other_database(comment=databases.MADE)
            open_sandbox(NUMBER).close()
            left = admin.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [name]).fetchall()
            assert sorted(left) == [(name,), (foreign,)]
        finally:
            for each in (unfinished, foreign):
                run(admin, DROP, each)


# One user at a time


@contextmanager
def another_process(number: int) -> Iterator[None]:
    """Use a sandbox through a second connection, as another process would."""
    open_sandbox(number).close()
    settings = databases.postgres_database(number, time.monotonic() + 5)
    there = make_conninfo("", **address(settings) | {"application_name": "another process"})
    with psycopg.connect(there, autocommit=True) as connection:
        assert connection.execute("SELECT pg_try_advisory_lock(%s, %s)", IN_USE).fetchone() == (True,)
        yield
        # Unlock explicitly: the server notices a closed connection too late for the next test.
        connection.execute("SELECT pg_advisory_unlock_all()")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Forget the idle sandboxes. Return a list that gets the number of each sandbox that is opened."""
    numbers: list[int] = []
    original = pool._open

    def noted(number: int, *rest: Any) -> Sandbox:
        numbers.append(number)
        return original(number, *rest)

    monkeypatch.setattr(pool, "_open", noted)
    monkeypatch.setattr(pool, "_idle", {})
    return numbers


def test_an_open_sandbox_is_busy_and_commands_and_visitors_use_different_ones(settings: Any) -> None:
    settings.LAB_SANDBOXES = 1
    with borrowed() as visitors, for_a_command() as first, another_process(2), for_a_command() as second:
        with pytest.raises(SandboxesBusy):
            open_sandbox(3)
        names = [sandbox.database["NAME"][-6:] for sandbox in (visitors, first, second)]
    assert names == ["_lab_0", "_lab_1", "_lab_3"]


def test_a_command_without_a_free_sandbox_names_its_users(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LAB_SANDBOXES = 1
    monkeypatch.setattr(pool, "MOST", 1)
    busy = pytest.raises(SandboxesBusy, match=r"used by: .*another process")
    with another_process(0), busy, for_a_command(wait_timeout=0.2):
        pass


def test_waiting_for_another_process_opens_a_sandbox_once(settings: Any, opened: list[int]) -> None:
    settings.LAB_SANDBOXES = 1
    with another_process(0):
        opened.clear()
        for _ in range(2):
            with pytest.raises(SandboxesBusy), borrowed(wait_timeout=0.3):
                pass
    with borrowed():
        assert opened == [0]


def test_waiting_for_another_thread_opens_no_sandbox(settings: Any, opened: list[int]) -> None:
    settings.LAB_SANDBOXES = 1

    def borrow() -> Sandbox:
        with borrowed(wait_timeout=60) as sandbox:
            return sandbox

    with ThreadPoolExecutor(4) as threads:
        with borrowed() as first:
            with pytest.raises(SandboxesBusy), borrowed(wait_timeout=0.3):
                pass
            others = [threads.submit(borrow) for _ in range(4)]
            assert not wait(others, timeout=0.3).done
        assert [each.result() for each in others] == [first] * 4
    assert opened == [0]


def test_waiting_for_a_database_to_be_created_is_bounded(
    settings: Any, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_comment", lambda: "other tables")
    began = time.monotonic()
    with server() as creator:
        creator.execute("SELECT pg_advisory_lock(%s, %s)", databases.CREATING)
        with pytest.raises(SandboxesBusy), borrowed(wait_timeout=0.5):
            pass
    assert time.monotonic() - began > 0.4


def test_a_lost_sandbox_is_not_used_again(settings: Any) -> None:
    settings.LAB_SANDBOXES = 1
    lost = []

    def use() -> None:
        with borrowed() as sandbox:
            lost.append(sandbox)
            end_backend(sandbox.observer)
            for _ in range(2):
                with pytest.raises(psycopg.OperationalError):
                    sandbox.observer.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError):
        use()
    assert lost[0] not in pool._idle.values()
    with borrowed() as another:
        assert another is not lost[0]
    end_backend(another.observer)  # Lose the connection of an idle sandbox.
    with borrowed() as opened_again:
        assert opened_again.observer.execute("SELECT 1").fetchone() == (1,)


# Where the servers are, and whether they answer


def change_settings(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Change the shop's database settings, as another DATABASE_URL would."""
    shop = connections.databases[DEFAULT_DB_ALIAS]
    monkeypatch.setitem(connections.databases, DEFAULT_DB_ALIAS, {**shop, **changed})
    monkeypatch.setattr(pool, "_idle", {})


def test_the_query_of_database_url_holds_for_the_lab_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = connections.databases[DEFAULT_DB_ALIAS]
    found = database("DATABASE_URL", f"postgres:///shop?host={shop['HOST']}&port={shop['PORT']}&sslmode=prefer")
    asked = {name: found.get(name, "") for name in ("HOST", "PORT", "PASSWORD")}
    assert asked["HOST"] == ""
    options = {**shop["OPTIONS"], **found["OPTIONS"], "pool": {"min_size": 1}}
    change_settings(monkeypatch, **asked, OPTIONS=options)
    with closing(open_sandbox(NUMBER)) as sandbox:
        parts = conninfo_to_dict(sandbox.conninfo)
        assert (parts["host"], parts["port"], parts["sslmode"]) == (shop["HOST"], str(shop["PORT"]), "prefer")
        assert replay("no-lock", [], sandbox, to_the_end=True).steps


def test_a_role_that_may_not_create_databases_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as admin:
        admin.execute("CREATE ROLE poor LOGIN")
        run(admin, DROP, database_name(0))
        try:
            with monkeypatch.context() as patch:
                change_settings(patch, USER="poor")
                with pytest.raises(ServerError, match=r"may not create its database .*permission denied.*CREATEDB"):
                    open_sandbox(0)
                answer = client.get("/lab/rungs/no-lock/play/", {"schedule": "A"})
        finally:
            admin.execute("DROP ROLE poor")
    open_sandbox(0).close()
    assert (answer.status_code, answer["Retry-After"]) == (503, str(replays.RETRY_SECONDS))


@pytest.mark.slow
@pytest.mark.parametrize("command", [("explore", "no-lock"), ("replay", "no-lock"), ("ladder", "no-lock", "--verify")])
@pytest.mark.parametrize("gone", ["Postgres", "Redis"])
def test_without_its_servers_a_command_says_so(command: tuple[str, ...], gone: str, tmp_path: Path) -> None:
    shop = connections.databases[DEFAULT_DB_ALIAS]
    host = tmp_path if gone == "Postgres" else shop["HOST"]
    done = manage(
        *command,
        SECRET_KEY="x" * 50,
        DATABASE_URL=f"postgres://{shop['USER']}@/{DATABASE}?port={shop['PORT']}&host={host}",
        REDIS_URL=f"unix://{tmp_path}/none" if gone == "Redis" else django_settings.REDIS_LOCATION,
    )
    assert done.returncode == 2, done.stderr
    assert f"CommandError: {gone} does not answer the lab" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_ends_during_a_command_is_named() -> None:
    def use() -> None:
        with for_a_command() as sandbox:
            end_backend(sandbox.observer)
            sandbox.observer.execute("SELECT 1")

    with pytest.raises(ServerError, match="Postgres does not answer the lab"):
        use()


# The shop's log


@pytest.mark.parametrize(
    ("slug", "schedule", "text"),
    [("fence", "A,A,pause A,B,A,A", "The lease of lock 'stock' was lost"), ("lua", "A,A,crash A,B,B", "Repaired: ")],
)
def test_a_visitors_schedule_does_not_write_to_the_shops_log(
    client: Client, slug: str, schedule: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])

    def logged() -> str:
        log = io.StringIO()
        before = handler.setStream(log)
        try:
            assert client.get(f"/lab/rungs/{slug}/play/", {"schedule": schedule, "clients": "2"}).status_code == 200
        finally:
            handler.setStream(before or log)
        return log.getvalue()

    apps.get_app_config("lab").ready()
    assert logged() == ""
    handler.removeFilter(pool.is_no_visitors)
    assert text in logged()


# Connections of crashed actors


def test_a_connection_that_is_being_closed_has_no_backend(django_db_setup: None) -> None:
    connection = psycopg.connect(**address(connections[DEFAULT_DB_ALIAS].settings_dict))
    held: Any = SimpleNamespace(database=SimpleNamespace(connection=connection))
    actor: Any = SimpleNamespace(session=None)
    assert backends_of(held, actor) == [connection.info.backend_pid]
    connection.close()
    assert backends_of(held, actor) == []


def test_a_terminated_backend_is_gone_at_the_next_run(opened_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminated backend is gone before the next schedule, even if the actor's thread has lost the backend's id."""
    actor: Any = SimpleNamespace(name="dies", session=None)

    def wait_for_a_lock() -> None:
        held: Any = opened_sandbox.connect_thread("dies")
        with suppress(OperationalError), held.database.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(4711)")
        held.database.close()

    asked: list[Any] = []
    observer = opened_sandbox.observer

    def execute(query: Any, parameters: Any = None) -> Any:
        asked.append(parameters)
        return observer.execute(query, parameters)

    with ThreadPoolExecutor(1) as threads:
        observer.execute("SELECT pg_advisory_lock(4711)")
        thread = threads.submit(wait_for_a_lock)
        waiting = "SELECT pid FROM pg_locks WHERE objid = 4711 AND NOT granted"
        (pid,) = wait_for(lambda: observer.execute(waiting).fetchone())
        opened_sandbox.terminate(actor)
        thread.result(WAIT_TIMEOUT)
        with monkeypatch.context() as patch:
            patch.setattr(opened_sandbox, "_observer", SimpleNamespace(closed=False, execute=execute))
            opened_sandbox.disconnect(actor)
    assert [[pid]] in asked
    assert observer.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount == 0
