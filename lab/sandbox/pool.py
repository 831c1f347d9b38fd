"""Stages to borrow: lab databases beside the shop's own, so that no schedule can touch what the shop keeps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any
from urllib.parse import unquote_plus

import psycopg
import redis
from django.conf import settings
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections
from django.db.migrations.loader import MigrationLoader
from psycopg import sql
from psycopg.conninfo import make_conninfo
from redis import ResponseError
from redis.connection import parse_url

from lab.explorer.actor import current_actor
from lab.sandbox.sandbox import IN_USE, NotOurs, Sandbox, address
from servers import ServerError

REDIS_DATABASES = range(15, -1, -1)
"""Stages use these in turn, but for the shop's own: those that a Redis has if it is not told otherwise."""
MOST = len(REDIS_DATABASES) - 1
"""Stages there can be."""
OPENING = (IN_USE[0], 1)
"""The advisory lock, in the server's own Postgres database, of whoever makes the database of a stage."""
VISITORS_WAIT, COMMANDS_WAIT = 5.0, 30.0
"""Seconds in which there has to be a stage."""
LOOK_AGAIN = 0.05
"""Seconds between two looks for a stage that another process uses."""

START = "Start it, see that DATABASE_URL and REDIS_URL name what runs, and try again."

MADE = "The lab of Last Unit: "
"""How the comment of every Postgres database begins that the lab has made. What follows says for which tables."""

_changed = threading.Condition()
_used: set[int] = set()
"""The stages that a thread of this process uses, or tries to."""
_idle: dict[int, Sandbox] = {}
"""Those that are open, and that this process does not use. Another one may."""

ROOMS = ("locking", "inventory", "shop")
"""Those that have something to say to the shop's log."""
_here = threading.local()


class SandboxesBusy(ServerError):
    """All stages are in use."""


@contextmanager
def borrowed(patience: float = VISITORS_WAIT) -> Iterator[Sandbox]:
    """For the block, one of the visitors' stages, which nobody else uses.

    Args:
        patience: seconds to wait for one at most.

    Raises:
        SandboxesBusy: none was free in that time.
        ServerError: none can be opened.
    """
    number, stage = _take(range(settings.LAB_SANDBOXES), time.monotonic() + patience)
    kept = None
    _here.borrows = True
    try:
        yield stage
        stage.give_back()
        kept = stage
    finally:
        _here.borrows = False
        try:
            if kept is None:
                stage.close()
        finally:
            _leave(number, kept)


@contextmanager
def for_a_command(patience: float = COMMANDS_WAIT) -> Iterator[Sandbox]:
    """For the block, a stage that nobody else uses. One of the visitors' is used only if there is no other.

    Args:
        patience: seconds to wait for one at most.

    Raises:
        SandboxesBusy: none was free in that time. It says who has them.
        ServerError: none can be opened, or a server was gone before the block ended.
    """
    numbers = (*range(settings.LAB_SANDBOXES, MOST), *range(settings.LAB_SANDBOXES))
    try:
        number, stage = _take(numbers, time.monotonic() + patience)
    except SandboxesBusy as busy:
        raise SandboxesBusy(f"{busy} They are used by: {_who_has_them()}.") from busy
    try:
        with plainly():
            yield stage
    finally:
        try:
            stage.close()
        finally:
            _leave(number, None)


@contextmanager
def plainly() -> Iterator[None]:
    """For the block, a server that does not answer is said to be one.

    Raises:
        ServerError: instead of what the clients of Postgres and Redis raise.
    """
    try:
        yield
    except (psycopg.OperationalError, OperationalError, InterfaceError) as error:
        raise ServerError(f"Postgres does not answer the lab ({_first_line(error)}). {START}") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise ServerError(f"Redis does not answer the lab ({_first_line(error)}). {START}") from error


def is_no_visitors(record: logging.LogRecord) -> bool:
    """A filter of logs: what the shop's rooms say in a visitor's schedule is on his page, and nothing of the shop's."""
    plays = getattr(_here, "borrows", False) or current_actor() is not None
    return not (plays and record.name.partition(".")[0] in ROOMS)


def open_sandbox(number: int, redis_url: str = "") -> Sandbox:
    """Open a stage, which nobody else can use until it is closed.

    Args:
        number: which, from 0.
        redis_url: another Redis database than the one of that number beside the shop's.

    Raises:
        SandboxesBusy: somebody else uses it.
        ServerError: there is no such stage, or a server does not let it be opened.
    """
    stage = _open(number, time.monotonic() + VISITORS_WAIT, redis_url)
    try:
        if _taken(number, stage):
            return stage
    except BaseException:
        stage.close()
        raise
    stage.close()
    raise SandboxesBusy(f"Sandbox {number} is in use.")


def _take(numbers: Sequence[int], until: float) -> tuple[int, Sandbox]:
    """The first of these stages that is free. One whose databases hold what is not the lab's is passed over.

    Raises:
        SandboxesBusy: none was, until that time on the monotonic clock.
        NotOurs: there is none but such.
    """
    while True:
        for number in numbers:
            try:
                if (stage := _try(number, until)) is not None:
                    return number, stage
            except NotOurs:
                numbers = [other for other in numbers if other != number]
                if not numbers:
                    raise
        with _changed:
            left = until - time.monotonic()
            if left <= 0:
                raise SandboxesBusy(f"All {len(numbers)} stages are in use. Try again in a moment.")
            elsewhere = any(number not in _used for number in numbers)
            _changed.wait(min(LOOK_AGAIN, left) if elsewhere else left)


def _try(number: int, until: float) -> Sandbox | None:
    with _changed:
        if number in _used:
            return None
        _used.add(number)
        stage = _idle.pop(number, None)
    taken = False
    try:
        if stage is not None:
            try:
                taken = _taken(number, stage)
            except ServerError:
                # Since it was last used a server was restarted, perhaps.
                stage.close()
                stage = None
        if stage is None:
            stage = _open(number, until)
            taken = _taken(number, stage)
    except BaseException:
        if stage is not None:
            stage.close()
        _leave(number, None)
        raise
    if taken:
        return stage
    _leave(number, stage)
    return None


def _leave(number: int, stage: Sandbox | None) -> None:
    """This thread does not use a stage any more, which stays open unless it is None."""
    with _changed:
        _used.discard(number)
        if stage is not None:
            _idle[number] = stage
        _changed.notify_all()


def _taken(number: int, stage: Sandbox) -> bool:
    try:
        with plainly():
            return stage.take()
    except ResponseError as error:
        raise ServerError(
            f"Redis refuses the database of stage {number}: {error}. The lab needs a Redis with {MOST + 1} databases "
            f"(`databases {MOST + 1}` in its configuration), where it empties those that REDIS_URL does not name."
        ) from error


def _who_has_them() -> str:
    holders = (
        "SELECT string_agg(DISTINCT coalesce(application_name, '?'), '; ') FROM pg_locks JOIN pg_stat_activity "
        "USING (pid) WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND objsubid = 2 AND granted"
    )
    with plainly(), _server(_shops_database(), time.monotonic() + VISITORS_WAIT) as server:
        (said,) = server.execute(holders, IN_USE).fetchone() or (None,)
    return str(said or "nobody any more")


def redis_url_of(number: int, shop: str) -> str:
    """The Redis database of a stage.

    Args:
        number: which stage, from 0.
        shop: the URL of the shop's own database, which is on the same server and is no stage's.

    Raises:
        ServerError: there is no such stage.
    """
    own = parse_url(shop).get("db", 0)
    free = [database for database in REDIS_DATABASES if database != own][:MOST]
    if not 0 <= number < len(free):
        raise ServerError(
            f"There is no stage {number}: Redis has databases for {MOST} beside the shop's. "
            f"Set LAB_SANDBOXES to {MOST} or less."
        )
    place, _, query = shop.partition("#")[0].partition("?")
    # The first `db` of a query would win, and any of them over a path.
    kept = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) != "db"]
    if place.startswith("unix:"):
        kept.append(f"db={free[number]}")
    else:
        place = f"{'/'.join(place.split('/')[:3])}/{free[number]}"
    return "?".join(filter(None, (place, "&".join(kept))))


def _open(number: int, until: float, redis_url: str = "") -> Sandbox:
    """A stage that nobody has taken yet. Its Postgres database is made if there is none."""
    url = redis_url or redis_url_of(number, settings.REDIS_LOCATION)
    with plainly():
        return Sandbox(url, _database(number, until))


def _shops_database() -> dict[str, Any]:
    shop = connections.databases[DEFAULT_DB_ALIAS]
    options = {name: value for name, value in shop["OPTIONS"].items() if name != "pool"}
    # The shop's own name, which in a test is that of the test's database.
    name = connections[DEFAULT_DB_ALIAS].settings_dict["NAME"]
    return {**shop, "NAME": name, "OPTIONS": options, "CONN_MAX_AGE": 0}


def _database(number: int, until: float) -> dict[str, Any]:
    database = _shops_database()
    name = database["NAME"] = f"{database['NAME']}_lab_{number}"
    try:
        with _server(database, until) as server:
            if not _is_made(server, name):
                patience = f"{max(1, round(1000 * (until - time.monotonic())))}ms"
                server.execute("SELECT set_config('lock_timeout', %s, false)", [patience])
                server.execute("SELECT pg_advisory_lock(%s, %s)", OPENING)
                # What a web process lets a statement take is meant for visitors.
                server.execute("SET lock_timeout = 0")
                server.execute("SET statement_timeout = 0")
                if not _is_made(server, name):
                    _make(server, name, database)
    except psycopg.errors.LockNotAvailable as error:
        raise SandboxesBusy("Another process is making the database of a stage. Try again in a moment.") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ServerError(
            f"The lab may not make its database {name}: {_first_line(error)}. It needs some beside the shop's: let the "
            "role that DATABASE_URL names make them (ALTER ROLE … CREATEDB)."
        ) from error
    return database


def _server(database: dict[str, Any], until: float) -> psycopg.Connection[Any]:
    """A connection to the database that every Postgres has, from which others are made."""
    patience = max(1, round(until - time.monotonic()))
    there = address(database) | {"dbname": "postgres", "connect_timeout": patience}
    return psycopg.connect(make_conninfo("", **there), autocommit=True)


def _is_made(server: psycopg.Connection[Any], name: str) -> bool:
    said = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
    known: tuple[Any, ...] | None = server.execute(said, [name]).fetchone()
    return known == (_comment(),)


def _is_ours(server: psycopg.Connection[Any], name: str) -> bool:
    """Whether a database is the lab's, which says so; or there is none."""
    said = "SELECT coalesce(shobj_description(oid, 'pg_database'), '') FROM pg_database WHERE datname = %s"
    known: tuple[str, ...] | None = server.execute(said, [name]).fetchone()
    return known is None or known[0].startswith(MADE)


def _comment() -> str:
    """What says whose a database is and which tables it has: a stage that was made for others is made anew."""
    return MADE + ", ".join(f"{app}.{name}" for app, name in sorted(MigrationLoader(None).graph.leaf_nodes()))


def _make(server: psycopg.Connection[Any], name: str, database: dict[str, Any]) -> None:
    """It gets its name when it is whole and says whose it is. What a crash leaves has another, and is dropped later."""
    if not _is_ours(server, name):
        raise NotOurs(
            f"The Postgres database {name} is not the lab's, which would make its own under that name. "
            "Rename it, or drop it yourself."
        )
    making = f"{name}_{token_hex(4)}"
    made, whole = sql.Identifier(making), sql.Identifier(name)
    whose = sql.SQL("COMMENT ON DATABASE {} IS {}")
    for old in (name, *_left(server, name)):
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(old)))
    server.execute(sql.SQL("CREATE DATABASE {}").format(made))
    try:
        server.execute(whose.format(made, sql.Literal(MADE)))
        # It is worth nothing after a crash, so no commit of it waits for the disk.
        server.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(made))
        alias = f"lab {name}"
        connections.databases[alias] = connections.databases[DEFAULT_DB_ALIAS] | database | {"NAME": making}
        try:
            call_command("migrate", database=alias, verbosity=0, interactive=False)
        finally:
            connections[alias].close()
            del connections[alias]
            del connections.databases[alias]
        server.execute(whose.format(made, sql.Literal(_comment())))
        server.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(made, whole))
    except BaseException:
        with suppress(psycopg.Error):
            server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(made))
        raise


def _left(server: psycopg.Connection[Any], name: str) -> list[str]:
    """The databases that were to get that name, and never did."""
    said = "SELECT datname FROM pg_database WHERE starts_with(datname, %s) AND "
    said += "starts_with(shobj_description(oid, 'pg_database'), %s)"
    return [row[0] for row in server.execute(said, [f"{name}_", MADE])]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
