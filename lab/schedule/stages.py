"""Stages to borrow: lab databases beside the shop's own, so that no schedule can touch what the shop keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote_plus

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.loader import MigrationLoader
from psycopg import sql
from redis import ResponseError
from redis.connection import parse_url

from lab.schedule.stage import Stage
from servers import ServerError

REDIS_DATABASES = range(15, -1, -1)
"""Stages use these in turn, but for the shop's own: those that a Redis has if it is not told otherwise."""
MOST = len(REDIS_DATABASES) - 1
"""Stages there can be."""
IN_USE = (0x4C6162, 0)
"""The advisory lock, in a stage's own Postgres database, of whoever uses the stage."""
LOOK_AGAIN = 0.05
"""Seconds between two looks for a stage that is free."""

_mutex = threading.Lock()
_idle: dict[int, Stage] = {}


class StagesBusy(Exception):
    """All stages are in use."""


@contextmanager
def borrowed(patience: float = 5.0) -> Iterator[Stage]:
    """A stage that nobody else uses for as long as the block lasts.

    Args:
        patience: seconds to wait for one at most.

    Raises:
        StagesBusy: none was free in that time.
    """
    until = time.monotonic() + patience
    while (taken := _take()) is None:
        if time.monotonic() > until:
            raise StagesBusy(f"All {settings.LAB_STAGES} stages are in use. Try again in a moment.")
        time.sleep(LOOK_AGAIN)
    number, stage = taken
    try:
        yield stage
    except BaseException:
        stage.close()
        raise
    stage.eyes.execute("SELECT pg_advisory_unlock(%s, %s)", IN_USE)
    with _mutex:
        _idle[number] = stage


def _take() -> tuple[int, Stage] | None:
    for number in range(settings.LAB_STAGES):
        with _mutex:
            stage = _idle.pop(number, None)
        if stage is None:
            stage = open_stage(number)
        with suppress(psycopg.OperationalError):
            if stage.eyes.execute("SELECT pg_try_advisory_lock(%s, %s)", IN_USE).fetchone() == (True,):
                return number, stage
        stage.close()
    return None


def open_stage(number: int, redis_url: str = "") -> Stage:
    """Open a stage, and make its Postgres database if there is none yet.

    Args:
        number: which, from 0.
        redis_url: another Redis database than the one of that number beside the shop's.

    Raises:
        ServerError: there is no such stage, because Redis has no database left for it.
    """
    url = redis_url or redis_url_of(number, settings.REDIS_LOCATION)
    database = _database(number)
    try:
        return Stage(url, database)
    except ResponseError as error:
        raise ServerError(
            f"Redis refuses the database of stage {number}: {error}. The lab needs a Redis with {MOST + 1} databases "
            f"(`databases {MOST + 1}` in its configuration), where it empties those that REDIS_URL does not name."
        ) from error


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
            f"Set LAB_STAGES to {MOST} or less."
        )
    place, _, query = shop.partition("#")[0].partition("?")
    # The first `db` of a query would win, and any of them over a path.
    kept = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) != "db"]
    if place.startswith("unix:"):
        kept.append(f"db={free[number]}")
    else:
        place = f"{'/'.join(place.split('/')[:3])}/{free[number]}"
    return "?".join(filter(None, (place, "&".join(kept))))


def _database(number: int) -> dict[str, Any]:
    shop = connections.databases[DEFAULT_DB_ALIAS]
    options = {name: value for name, value in shop["OPTIONS"].items() if name != "pool"}
    # The shop's own name, which in a test is that of the test's database.
    name = f"{connections[DEFAULT_DB_ALIAS].settings_dict['NAME']}_lab_{number}"
    database = {**shop, "NAME": name, "OPTIONS": options, "CONN_MAX_AGE": 0}
    with psycopg.connect(**_address(database, "postgres"), autocommit=True) as server:
        server.execute("SELECT pg_advisory_lock(%s, 1)", IN_USE[:1])
        said = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
        known = server.execute(said, [name]).fetchone()
        if known != (_tables(),):
            _make(server, name, database)
    return database


def _tables() -> str:
    """Which tables there are: a stage that was made for others is made anew."""
    return ", ".join(f"{app}.{name}" for app, name in sorted(MigrationLoader(None).graph.leaf_nodes()))


def _make(server: psycopg.Connection[Any], name: str, database: dict[str, Any]) -> None:
    made = sql.Identifier(name)
    server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(made))
    server.execute(sql.SQL("CREATE DATABASE {}").format(made))
    try:
        # It is worth nothing after a crash, so no commit of it waits for the disk.
        server.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(made))
        alias = f"lab {name}"
        connections.databases[alias] = connections.databases[DEFAULT_DB_ALIAS] | database
        try:
            call_command("migrate", database=alias, verbosity=0, interactive=False)
        finally:
            connections[alias].close()
            del connections[alias]
            del connections.databases[alias]
        server.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(made, sql.Literal(_tables())))
    except BaseException:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(made))
        raise


def _address(database: dict[str, Any], name: str) -> dict[str, Any]:
    address = {"host": database["HOST"], "port": database["PORT"], "user": database["USER"]}
    if database.get("PASSWORD"):
        address["password"] = database["PASSWORD"]
    return {**{key: value for key, value in address.items() if value}, "dbname": name}
