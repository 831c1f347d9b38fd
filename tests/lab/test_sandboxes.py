"""Stages: nothing of the shop's is theirs, one user each, and a clear word when there is none."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import redis
from django.apps import apps
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from django.test import Client
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_django import DjangoDbBlocker
from redis.connection import parse_url

from lab.apps import check_sandbox_count
from lab.claims.runs import replay
from lab.sandbox import pool
from lab.sandbox.pool import SandboxesBusy, borrowed, for_a_command, open_sandbox, redis_url_of
from lab.sandbox.sandbox import IN_USE, MARK, NotOurs, Sandbox, _backends, address
from lab.site.pages import replays
from servers import ServerError
from servers.postgres import DATABASE
from shop.runtime.environment import database
from tests.lab.schedule_support import manage
from tests.waiting import PATIENCE, wait_for

NUMBER = 4
"""The first sandbox that these tests use: visitors and commands take those before it."""


@pytest.fixture(autouse=True)
def _databases(servers: object, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Any:
    with django_db_blocker.unblock():
        yield


# The Redis of a sandbox


SHOPS = {
    "unix:///run/valkey.sock": 0,
    "unix:///run/valkey.sock?db=3": 3,
    "unix://user:secret@/run/valkey.sock?db=15&socket_timeout=2": 15,
    "unix:///run/valkey.sock?socket_timeout=2&%64b=14": 14,
    "redis://host": 0,
    "redis://host/": 0,
    "redis://host:6380/3": 3,
    "redis://host/3/": 3,
    "redis://host/?db=15": 15,
    "redis://host?db=14": 14,
    "redis://host/3?db=13&db=2": 13,
    "redis://user:pass%2Fword@host:6380/15?socket_timeout=2": 15,
    "redis://[::1]:6380/1#shop": 1,
    "rediss://host/12?ssl_cert_reqs=none": 12,
    "redis://host/77": 77,
    "redis://host/no-number": 0,
}


@pytest.mark.parametrize("shop", SHOPS)
def test_every_stage_has_a_redis_database_of_its_own_that_is_not_the_shops(shop: str) -> None:
    own = parse_url(shop)
    assert own.pop("db", 0) == SHOPS[shop]
    numbers = []
    for number in range(pool.MOST):
        found = parse_url(redis_url_of(number, shop))
        numbers.append(found.pop("db"))
        assert found == own
    assert len(set(numbers)) == pool.MOST
    assert set(numbers) <= {*range(16)} - {SHOPS[shop]}


@pytest.mark.parametrize("number", [-1, pool.MOST])
def test_a_stage_that_redis_has_no_database_for_is_refused(number: int) -> None:
    with pytest.raises(ServerError, match=r"no sandbox .*LAB_SANDBOXES to 15 or less"):
        open_sandbox(number)


@pytest.mark.parametrize("query", ["", "?db=0", "?db=3", f"?db={15 - NUMBER}", "?socket_timeout=9&db=15"])
def test_a_trial_leaves_the_shops_redis_alone(settings: Any, query: str) -> None:
    settings.REDIS_LOCATION += query
    shop = redis.Redis.from_url(settings.REDIS_LOCATION)
    shop.set("the shop's", "kept")
    try:
        sandbox = open_sandbox(NUMBER)
        try:
            assert replay("setnx", [], sandbox, to_the_end=True).steps
        finally:
            sandbox.close()
        assert shop.get("the shop's") == b"kept"
    finally:
        shop.flushdb()


def test_a_redis_with_fewer_databases_is_refused_with_what_to_do() -> None:
    with pytest.raises(ServerError, match=r"out of range.*`databases 16`"):
        open_sandbox(NUMBER, f"{django_settings.REDIS_LOCATION}?db=16")


@pytest.mark.parametrize(("number", "errors"), [(0, 1), (1, 0), (pool.MOST, 0), (pool.MOST + 1, 1)])
def test_a_number_of_stages_that_there_cannot_be_is_refused_at_the_start(
    settings: Any, number: int, errors: int
) -> None:
    settings.LAB_SANDBOXES = number
    assert len(check_sandbox_count()) == errors


@pytest.mark.parametrize("processes", [0, pool.MOST + 1])
def test_so_many_processes_as_there_cannot_be_stages_are_refused(processes: int) -> None:
    with pytest.raises(CommandError, match="from 1 to 15"):
        call_command("ladder", "no-lock", "--verify", "--processes", str(processes))


# What is not the lab's


@pytest.fixture
def theirs() -> Iterator[redis.Redis]:
    """The Redis database of sandbox `NUMBER`, in which somebody else keeps something."""
    client = redis.Redis.from_url(redis_url_of(NUMBER, django_settings.REDIS_LOCATION))
    client.flushdb()
    client.set("session", "somebody's")
    yield client
    client.flushdb()


def test_a_redis_database_with_somebody_elses_keys_is_left_alone_and_named(theirs: redis.Redis) -> None:
    with pytest.raises(NotOurs, match=rf"Redis database {15 - NUMBER} of /.*\.sock holds 1 keys .*LAB_SANDBOXES lower"):
        open_sandbox(NUMBER)
    assert (theirs.keys(), theirs.get("session")) == ([b"session"], b"somebody's")
    theirs.delete("session")
    open_sandbox(NUMBER).close()  # nobody keeps it from those who have made room


def test_the_lab_of_another_shop_on_the_same_redis_keeps_its_schedule(theirs: redis.Redis) -> None:
    """Each has its own Postgres, so only the mark says which of them uses the database."""
    theirs.set(MARK, "Last Unit empties this: shop_lab_0 of Postgres 1")
    with pytest.raises(NotOurs, match="holds 2 keys"):
        open_sandbox(NUMBER)
    assert sorted(theirs.keys()) == [MARK.encode(), b"session"]


def test_what_is_put_into_a_stages_redis_while_nobody_has_it_is_left_alone() -> None:
    sandbox = open_sandbox(NUMBER)
    assert replay("setnx", [], sandbox, to_the_end=True).steps
    sandbox.close()
    other = redis.Redis.from_url(sandbox.redis_url)
    assert other.dbsize() == 0
    other.set("session", "somebody's")
    with pytest.raises(NotOurs):
        open_sandbox(NUMBER)
    assert other.get("session") == b"somebody's"
    other.flushdb()


def test_what_is_put_into_a_stages_redis_in_place_of_the_labs_is_not_emptied_by_the_next_schedule() -> None:
    sandbox = open_sandbox(NUMBER)
    other = redis.Redis.from_url(sandbox.redis_url)
    other.flushdb()
    other.set("session", "somebody's")
    with pytest.raises(NotOurs):
        replay("setnx", [], sandbox, to_the_end=True)
    sandbox.close()
    assert other.get("session") == b"somebody's"
    other.flushdb()


def test_a_stage_that_was_given_back_keeps_nothing_in_redis_and_is_used_again(opened: list[int], settings: Any) -> None:
    settings.LAB_SANDBOXES = 1
    for _ in range(2):
        with borrowed() as sandbox:
            assert replay("setnx", [], sandbox, to_the_end=True).steps
        assert sandbox.redis.dbsize() == 0
    assert opened == [0]


def test_what_a_crash_has_left_in_redis_is_known_as_the_labs() -> None:
    sandbox = open_sandbox(NUMBER)
    assert replay("setnx", ["A", "crash A"], sandbox).steps
    left = redis.Redis.from_url(sandbox.redis_url)
    assert left.dbsize() > 1
    _end(sandbox.observer)  # as with the process: nobody gives back
    sandbox.close()
    assert left.dbsize() > 1
    another = open_sandbox(NUMBER)
    assert left.keys() == [MARK.encode()]
    another.close()


@pytest.mark.parametrize(("slug", "schedule"), [("setnx", ["A", "B"]), ("lua", ["A", "restart", "A"])])
def test_no_page_shows_the_mark_of_the_lab_and_a_restart_keeps_it(slug: str, schedule: list[str]) -> None:
    sandbox = open_sandbox(NUMBER)
    events: list[Any] = ["restart"]
    trace = replay(slug, schedule, sandbox, faults=events)
    assert [step.choice for step in trace.steps] == schedule
    shown = {kept["name"] for step in trace.steps for kept in step.state}
    assert shown
    assert MARK not in shown
    assert sandbox.redis.exists(MARK)
    sandbox.close()


def test_a_page_that_has_no_other_says_that_a_database_is_somebody_elses_and_a_command_takes_another(
    client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LAB_SANDBOXES = 1
    monkeypatch.setattr(pool, "_idle", {})
    kept = redis.Redis.from_url(redis_url_of(0, django_settings.REDIS_LOCATION))
    kept.flushdb()
    kept.set("session", "somebody's")
    try:
        answer = client.get("/lab/rungs/no-lock/play/", {"schedule": "A"})
        shop = connections.databases[DEFAULT_DB_ALIAS]
        done = manage(
            "explore",
            "no-lock",
            SECRET_KEY="x",
            DATABASE_URL=f"postgres://{shop['USER']}@/{DATABASE}?port={shop['PORT']}&host={shop['HOST']}",
            # Beside this one the command's first sandbox is what the page's is beside the shop's.
            REDIS_URL=f"{django_settings.REDIS_LOCATION}?db=9",
            LAB_SANDBOXES="15",
        )
        assert kept.get("session") == b"somebody's"
    finally:
        kept.flushdb()
    assert answer.status_code == 503
    assert "holds what is not its own" in answer.content.decode()
    assert "Retry-After" not in answer.headers
    assert done.returncode == 0, done.stderr


@pytest.fixture
def other_database() -> Iterator[Callable[..., None]]:
    """Makes a Postgres database that the lab has not made, under the name that sandbox `NUMBER` has for its own."""
    name = f"{pool._shops_database()['NAME']}_lab_{NUMBER}"
    made = sql.Identifier(name)
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(made)
    with pool._server(pool._shops_database(), time.monotonic() + 5) as server:

        def make(*statements: str, comment: str = "") -> None:
            server.execute(drop)
            server.execute(sql.SQL("CREATE DATABASE {}").format(made))
            if comment:
                server.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(made, sql.Literal(comment)))
            for statement in statements:
                inside(statement)

        yield make
        server.execute(drop)


def inside(statement: str) -> list[Any]:
    """What the Postgres database of sandbox `NUMBER` answers."""
    database = pool._shops_database()
    there = address(database | {"NAME": f"{database['NAME']}_lab_{NUMBER}"})
    with psycopg.connect(make_conninfo("", **there), autocommit=True) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


THEIRS = (
    "CREATE TABLE wages AS SELECT 1 AS paid",
    "CREATE FUNCTION pay() RETURNS int RETURN 1",
    "CREATE SCHEMA payroll",
    "SELECT lo_create(0)",
    "SELECT 1",  # nothing is in it, and nobody says that it is the lab's
)


@pytest.mark.parametrize("comment", ["", "The payroll"])
@pytest.mark.parametrize("statement", THEIRS)
def test_a_postgres_database_that_is_somebody_elses_is_not_dropped(
    other_database: Callable[..., None], comment: str, statement: str
) -> None:
    other_database(statement, comment=comment)
    before = inside("SELECT oid FROM pg_database WHERE datname = current_database()")
    with pytest.raises(NotOurs, match=rf"_lab_{NUMBER} is not the lab's.*Rename it, or drop it yourself"):
        open_sandbox(NUMBER)
    assert inside("SELECT oid FROM pg_database WHERE datname = current_database()") == before


@pytest.mark.parametrize("tables", ["", "lab.0001_initial"])
def test_a_postgres_database_of_the_labs_that_is_not_of_use_is_made_anew(
    other_database: Callable[..., None], tables: str
) -> None:
    other_database("CREATE TABLE shop_product AS SELECT 1", comment=f"{pool.MADE}{tables}")
    sandbox = open_sandbox(NUMBER)
    assert replay("guarded-update", [], sandbox, to_the_end=True).ledger
    sandbox.close()


def test_what_a_crash_leaves_of_a_database_that_is_being_made_goes_and_nothing_else(
    other_database: Callable[..., None],
) -> None:
    name = f"{pool._shops_database()['NAME']}_lab_{NUMBER}"
    left, theirs = sql.Identifier(f"{name}_dead"), sql.Identifier(f"{name}_copy")
    with pool._server(pool._shops_database(), time.monotonic() + 5) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(left))
        server.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(left, sql.Literal(pool.MADE)))
        server.execute(sql.SQL("CREATE DATABASE {}").format(theirs))
        try:
            other_database(comment=pool.MADE)
            open_sandbox(NUMBER).close()
            kept = server.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [name]).fetchall()
            assert sorted(kept) == [(name,), (f"{name}_copy",)]
        finally:
            for each in (left, theirs):
                server.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(each))


# One user each


@contextmanager
def somebody(number: int) -> Iterator[psycopg.Connection[Any]]:
    """Another process, as far as Postgres can tell, that uses a sandbox."""
    open_sandbox(number).close()
    database = pool._database(number, time.monotonic() + 5)
    there = make_conninfo("", **address(database) | {"application_name": "somebody"})
    with psycopg.connect(there, autocommit=True) as connection:
        assert connection.execute("SELECT pg_try_advisory_lock(%s, %s)", IN_USE).fetchone() == (True,)
        yield connection


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the stages that are opened from now on; none is open yet."""
    numbers: list[int] = []
    really = pool._open

    def noted(number: int, *rest: Any) -> Sandbox:
        numbers.append(number)
        return really(number, *rest)

    monkeypatch.setattr(pool, "_open", noted)
    monkeypatch.setattr(pool, "_idle", {})
    return numbers


def test_a_stage_is_opened_for_one_and_is_free_as_soon_as_it_is_closed() -> None:
    for _ in range(5):
        sandbox = open_sandbox(NUMBER)
        with pytest.raises(SandboxesBusy):
            open_sandbox(NUMBER)
        sandbox.close()


def test_commands_and_visitors_use_different_stages(settings: Any) -> None:
    settings.LAB_SANDBOXES = 1
    with borrowed() as visitors, for_a_command() as first, somebody(2), for_a_command() as second:
        assert [sandbox.database["NAME"][-6:] for sandbox in (visitors, first, second)] == [
            "_lab_0",
            "_lab_1",
            "_lab_3",
        ]


def test_a_command_without_a_free_stage_says_who_has_them(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LAB_SANDBOXES = 1
    monkeypatch.setattr(pool, "MOST", 1)
    with somebody(0), pytest.raises(SandboxesBusy, match=r"used by: .*somebody"), for_a_command(wait_timeout=0.2):
        pass


def test_a_command_leaves_a_stage_alone_that_somebody_uses() -> None:
    assert manage("replay", "no-lock").returncode == 0
    number = django_settings.LAB_SANDBOXES
    # Of the command's shop, which is not the test's.
    there = address(pool._shops_database()) | {"dbname": f"{DATABASE}_lab_{number}"}
    kept = redis.Redis.from_url(redis_url_of(number, django_settings.REDIS_LOCATION))
    with psycopg.connect(make_conninfo("", **there), autocommit=True) as connection:
        assert connection.execute("SELECT pg_try_advisory_lock(%s, %s)", IN_USE).fetchone() == (True,)
        kept.set("theirs", "kept")
        said = manage("ladder", "--verify", "--json", "no-lock", "get-then-set")
        assert (said.returncode, kept.get("theirs")) == (0, b"kept"), said.stderr
    kept.flushdb()


def test_whoever_waits_for_another_process_opens_a_stage_once(settings: Any, opened: list[int]) -> None:
    settings.LAB_SANDBOXES = 1
    with somebody(0):
        opened.clear()
        for _ in range(2):
            with pytest.raises(SandboxesBusy), borrowed(wait_timeout=0.3):
                pass
    with borrowed():
        assert opened == [0]


def test_whoever_waits_for_another_thread_opens_nothing_and_is_next(settings: Any, opened: list[int]) -> None:
    settings.LAB_SANDBOXES = 1

    def another() -> Sandbox:
        with borrowed(wait_timeout=60) as sandbox:
            return sandbox

    with ThreadPoolExecutor(4) as threads:
        with borrowed() as ours:
            with pytest.raises(SandboxesBusy), borrowed(wait_timeout=0.3):
                pass
            others = [threads.submit(another) for _ in range(4)]
            assert not wait(others, timeout=0.3).done
        assert [each.result() for each in others] == [ours] * 4
    assert opened == [0]


def test_the_wait_is_bounded_while_somebody_makes_a_stage(
    settings: Any, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_comment", lambda: "others")
    began = time.monotonic()
    with pool._server(pool._shops_database(), began + 5) as maker:
        maker.execute("SELECT pg_advisory_lock(%s, %s)", pool.OPENING)
        with pytest.raises(SandboxesBusy), borrowed(wait_timeout=0.5):
            pass
    assert 0.4 < time.monotonic() - began < 4


def test_a_stage_that_was_lost_is_neither_used_on_nor_kept() -> None:
    lost = []

    def use() -> None:
        with borrowed() as sandbox:
            lost.append(sandbox)
            _end(sandbox.observer)
            for _ in range(2):
                with pytest.raises(psycopg.OperationalError):
                    sandbox.observer.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError):
        use()
    assert lost[0] not in pool._idle.values()
    with borrowed() as another:
        assert another is not lost[0]


def test_an_idle_stage_whose_connections_ended_is_opened_anew(settings: Any) -> None:
    settings.LAB_SANDBOXES = 1
    with borrowed() as sandbox:
        pass
    _end(sandbox.observer)
    with borrowed() as another:
        assert another.eyes.execute("SELECT 1").fetchone() == (1,)


def _end(connection: psycopg.Connection[Any]) -> None:
    pid = connection.info.backend_pid
    with pool._server(pool._shops_database(), time.monotonic() + 5) as server:
        assert server.execute("SELECT pg_terminate_backend(%s, 5000)", [pid]).fetchone() == (True,)


# Where the servers are, and whether they serve


def given(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """The shop's settings of its database, as another DATABASE_URL would make them."""
    shop = connections.databases[DEFAULT_DB_ALIAS]
    monkeypatch.setitem(connections.databases, DEFAULT_DB_ALIAS, {**shop, **changed})
    monkeypatch.setattr(pool, "_idle", {})


def test_what_a_database_url_says_in_its_query_holds_for_the_lab_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = connections.databases[DEFAULT_DB_ALIAS]
    found = database("DATABASE_URL", f"postgres:///shop?host={shop['HOST']}&port={shop['PORT']}&sslmode=prefer")
    asked = {name: found.get(name, "") for name in ("HOST", "PORT", "PASSWORD")}
    assert asked["HOST"] == ""
    options = {**shop["OPTIONS"], **found["OPTIONS"], "pool": {"min_size": 1}}
    given(monkeypatch, **asked, OPTIONS=options)
    sandbox = open_sandbox(NUMBER)
    said = conninfo_to_dict(sandbox.conninfo)
    assert (said["host"], said["port"], said["sslmode"]) == (shop["HOST"], str(shop["PORT"]), "prefer")
    assert replay("no-lock", [], sandbox, to_the_end=True).steps
    sandbox.close()


@pytest.fixture
def may_make_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shop's role in Postgres may not make databases, and there is none for the lab."""
    with pool._server(pool._shops_database(), time.monotonic() + 5) as server:
        server.execute("CREATE ROLE poor LOGIN")
        name = f"{pool._shops_database()['NAME']}_lab_0"
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        with monkeypatch.context() as poor:
            given(poor, USER="poor")
            yield
        server.execute("DROP ROLE poor")
    open_sandbox(0).close()


@pytest.mark.usefixtures("may_make_nothing")
def test_a_role_that_may_make_no_database_is_told_to_be_let(client: Client) -> None:
    with pytest.raises(ServerError, match=r"may not make its database .*permission denied.*CREATEDB"):
        open_sandbox(0)
    answer = client.get("/lab/rungs/no-lock/play/", {"schedule": "A"})
    assert (answer.status_code, answer["Retry-After"]) == (503, str(replays.RETRY_SECONDS))


def test_without_postgres_a_page_says_so(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given(monkeypatch, HOST=str(tmp_path))
    answer = client.get("/lab/rungs/no-lock/play/", {"schedule": "A"})
    assert (answer.status_code, answer["Retry-After"]) == (503, str(replays.RETRY_SECONDS))


@pytest.mark.parametrize("command", [("explore", "no-lock"), ("replay", "no-lock"), ("ladder", "no-lock", "--verify")])
@pytest.mark.parametrize("gone", ["Postgres", "Redis"])
def test_without_its_servers_a_command_says_so_and_not_that_a_claim_is_wrong(
    command: tuple[str, ...], gone: str, tmp_path: Path
) -> None:
    shop = connections.databases[DEFAULT_DB_ALIAS]
    postgres = f"postgres://{shop['USER']}@/{DATABASE}?port={shop['PORT']}&host="
    done = manage(
        *command,
        SECRET_KEY="x",
        DATABASE_URL=postgres + (str(tmp_path) if gone == "Postgres" else shop["HOST"]),
        REDIS_URL=f"unix://{tmp_path}/none" if gone == "Redis" else django_settings.REDIS_LOCATION,
    )
    assert done.returncode == 2, done.stderr
    assert f"CommandError: {gone} does not answer the lab" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_ends_while_a_command_uses_it_is_said_to_be_gone() -> None:
    def use() -> None:
        with for_a_command() as sandbox:
            _end(sandbox.observer)
            sandbox.observer.execute("SELECT 1")

    with pytest.raises(ServerError, match="Postgres does not answer the lab"):
        use()


# The shop's log


@pytest.mark.parametrize(
    ("slug", "schedule", "says"),
    [("fence", "A,A,pause A,B,A,A", "The lease of lock 'stock' was lost"), ("lua", "A,A,crash A,B,B", "Repaired: ")],
)
def test_what_goes_wrong_in_a_visitors_schedule_is_not_in_the_shops_log(
    client: Client, slug: str, schedule: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play() -> str:
        log = io.StringIO()
        before = handler.setStream(log)
        try:
            assert client.get(f"/lab/rungs/{slug}/play/", {"schedule": schedule, "clients": "2"}).status_code == 200
        finally:
            handler.setStream(before or log)
        return log.getvalue()

    handler = logging.StreamHandler()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    apps.get_app_config("lab").ready()
    assert play() == ""
    handler.removeFilter(pool.is_no_visitors)
    assert says in play()


def test_who_is_closing_his_connection_when_he_is_ended_has_no_process_there(django_db_setup: None) -> None:
    """A dead actor's thread still runs, and may be at it when the sandbox looks whom to end."""
    mine = psycopg.connect(**address(connections[DEFAULT_DB_ALIAS].settings_dict))
    seat: Any = SimpleNamespace(database=SimpleNamespace(connection=mine))
    actor: Any = SimpleNamespace(session=None)
    assert _backends(seat, actor) == [mine.info.backend_pid]
    mine.close()
    assert _backends(seat, actor) == []


def test_whoever_was_cut_is_gone_from_postgres_too_before_the_next_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then his thread has closed his connection, and no longer knows which process of Postgres served him."""
    sandbox = open_sandbox(NUMBER)
    actor: Any = SimpleNamespace(name="dies", session=None)

    def wait_for_a_lock() -> None:
        seat = sandbox.sit("dies")
        with suppress(OperationalError), seat.database.cursor() as cursor:  # type: ignore[union-attr]
            cursor.execute("SELECT pg_advisory_lock(4711)")
        seat.database.close()  # type: ignore[union-attr]

    asked: list[Any] = []
    eyes = sandbox.observer
    with ThreadPoolExecutor(1) as pool:
        eyes.execute("SELECT pg_advisory_lock(4711)")
        thread = pool.submit(wait_for_a_lock)
        waiting = "SELECT pid FROM pg_locks WHERE objid = 4711 AND NOT granted"
        (pid,) = wait_for(lambda: eyes.execute(waiting).fetchone())
        sandbox.cut(actor)
        thread.result(PATIENCE)

        def execute(query: Any, parameters: Any = None) -> Any:
            asked.append(parameters)
            return eyes.execute(query, parameters)

        monkeypatch.setattr(sandbox, "_eyes", SimpleNamespace(closed=False, execute=execute))
        sandbox.dismiss(actor)
        monkeypatch.setattr(sandbox, "_eyes", eyes)
    assert [[pid]] in asked
    assert eyes.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount == 0
    sandbox.close()
