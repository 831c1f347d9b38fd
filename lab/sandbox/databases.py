"""The databases of the sandboxes: the number of each Redis database, and how each Postgres database is created."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any
from urllib.parse import unquote_plus

import psycopg
import redis
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections
from django.db.migrations.loader import MigrationLoader
from psycopg import sql
from psycopg.conninfo import make_conninfo
from redis.connection import parse_url

from lab.sandbox.connections import address
from lab.sandbox.redis_database import NotOurs
from servers import ServerError

REDIS_DATABASES = range(15, -1, -1)
"""Numbers of the databases that every Redis has by default. Sandboxes take them in this order. The shop's database is
never taken."""
MOST = len(REDIS_DATABASES) - 1
"""The maximum number of sandboxes."""
CREATING = (0x4C6162, 1)
"""Advisory lock on the database `postgres`. A process holds it while it creates the database of a sandbox."""

MADE = "The lab of Last Unit: "
"""Beginning of the comment on every Postgres database that the lab has created. The rest of the comment lists the last
migration of each Django app."""

CHECK = "Start it, check that DATABASE_URL and REDIS_URL name a running server, and try again."


class SandboxesBusy(ServerError):
    """All sandboxes are in use."""


@contextmanager
def server_errors() -> Iterator[None]:
    """Inside the `with` block, raise `ServerError` in place of connection errors of the Postgres and Redis clients.

    Raises:
        ServerError: a server does not answer.
    """
    try:
        yield
    except (psycopg.OperationalError, OperationalError, InterfaceError) as error:
        raise ServerError(f"Postgres does not answer the lab ({_first_line(error)}). {CHECK}") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise ServerError(f"Redis does not answer the lab ({_first_line(error)}). {CHECK}") from error


def redis_url_of(number: int, shop: str) -> str:
    """Return the URL of a sandbox's Redis database.

    Args:
        number: number of the sandbox, from 0.
        shop: URL of the shop's own database. It is on the same server, and no sandbox uses it.

    Raises:
        ServerError: there is no sandbox with this number.
    """
    shops_own = parse_url(shop).get("db", 0)
    free = [database for database in REDIS_DATABASES if database != shops_own][:MOST]
    if not 0 <= number < len(free):
        raise ServerError(
            f"There is no sandbox {number}: Redis has databases for {MOST} besides the shop's. "
            f"Set LAB_SANDBOXES to {MOST} or less."
        )
    place, _, query = shop.partition("#")[0].partition("?")
    # redis-py prefers a `db` in the query to the path. Remove it, or the sandbox would use the shop's database.
    kept = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) != "db"]
    if place.startswith("unix:"):
        kept.append(f"db={free[number]}")
    else:
        place = f"{'/'.join(place.split('/')[:3])}/{free[number]}"
    return "?".join(filter(None, (place, "&".join(kept))))


def shops_database() -> dict[str, Any]:
    """Return Django's settings of the shop's Postgres database, without its connection pool."""
    shop = connections.databases[DEFAULT_DB_ALIAS]
    options = {name: value for name, value in shop["OPTIONS"].items() if name != "pool"}
    # Use the name in the connection, not in the settings: in a test run it is the test database.
    name = connections[DEFAULT_DB_ALIAS].settings_dict["NAME"]
    return {**shop, "NAME": name, "OPTIONS": options, "CONN_MAX_AGE": 0}


def postgres_database(number: int, until: float) -> dict[str, Any]:
    """Return Django's settings of a sandbox's Postgres database. Create the database if it does not exist.

    Args:
        number: number of the sandbox, from 0.
        until: when to stop waiting for another process that creates a database, on the monotonic clock.

    Raises:
        SandboxesBusy: another process was still creating a database at that time.
        NotOurs: a database with this name exists, but was not created by the lab.
        ServerError: the shop's role may not create databases.
    """
    database = shops_database()
    name = database["NAME"] = f"{database['NAME']}_lab_{number}"
    try:
        with server(database, until) as connection:
            if not _is_made(connection, name):
                timeout = f"{max(1, round(1000 * (until - time.monotonic())))}ms"
                connection.execute("SELECT set_config('lock_timeout', %s, false)", [timeout])
                connection.execute("SELECT pg_advisory_lock(%s, %s)", CREATING)
                # Creating the tables may take longer than the limits that a web process sets for its statements.
                connection.execute("SET lock_timeout = 0")
                connection.execute("SET statement_timeout = 0")
                if not _is_made(connection, name):
                    _make(connection, name, database)
    except psycopg.errors.LockNotAvailable as error:
        raise SandboxesBusy("Another process is creating the database of a sandbox. Try again in a moment.") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ServerError(
            f"The lab may not create its database {name}: {_first_line(error)}. Let the role that DATABASE_URL names "
            "create databases (ALTER ROLE … CREATEDB)."
        ) from error
    return database


def server(database: dict[str, Any], until: float) -> psycopg.Connection[Any]:
    """Connect to the `postgres` database of a server, in order to create other databases."""
    timeout = max(1, round(until - time.monotonic()))
    there = address(database) | {"dbname": "postgres", "connect_timeout": timeout}
    return psycopg.connect(make_conninfo("", **there), autocommit=True)


def _is_made(connection: psycopg.Connection[Any], name: str) -> bool:
    query = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
    found: tuple[Any, ...] | None = connection.execute(query, [name]).fetchone()
    return found == (_comment(),)


def _comment() -> str:
    """Return the comment for a database with the current migrations.

    A database with another comment is created again.
    """
    return MADE + ", ".join(f"{app}.{name}" for app, name in sorted(MigrationLoader(None).graph.leaf_nodes()))


def _make(connection: psycopg.Connection[Any], name: str, database: dict[str, Any]) -> None:
    """Create a database under a temporary name, and rename it when it is complete.

    A crash leaves a database with a temporary name. The next call drops it.
    """
    if not _is_the_labs(connection, name):
        raise NotOurs(
            f"The Postgres database {name} is not the lab's. The lab would replace it, so it did nothing. "
            "Rename it, or drop it yourself."
        )
    making = f"{name}_{token_hex(4)}"
    temporary, final = sql.Identifier(making), sql.Identifier(name)
    comment = sql.SQL("COMMENT ON DATABASE {} IS {}")
    for old in (name, *_unfinished(connection, name)):
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(old)))
    connection.execute(sql.SQL("CREATE DATABASE {}").format(temporary))
    try:
        connection.execute(comment.format(temporary, sql.Literal(MADE)))
        # The data is worthless after a crash, so no commit has to wait for the disk.
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(temporary))
        _migrate(f"lab {name}", database | {"NAME": making})
        connection.execute(comment.format(temporary, sql.Literal(_comment())))
        connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(temporary, final))
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(temporary))
        raise


def _migrate(alias: str, database: dict[str, Any]) -> None:
    connections.databases[alias] = connections.databases[DEFAULT_DB_ALIAS] | database
    try:
        call_command("migrate", database=alias, verbosity=0, interactive=False)
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.databases[alias]


def _is_the_labs(connection: psycopg.Connection[Any], name: str) -> bool:
    """Return whether a database was created by the lab, or does not exist."""
    query = "SELECT coalesce(shobj_description(oid, 'pg_database'), '') FROM pg_database WHERE datname = %s"
    found: tuple[str, ...] | None = connection.execute(query, [name]).fetchone()
    return found is None or found[0].startswith(MADE)


def _unfinished(connection: psycopg.Connection[Any], name: str) -> list[str]:
    """Return the names of unfinished databases that a crash has left behind."""
    query = "SELECT datname FROM pg_database WHERE starts_with(datname, %s) AND "
    query += "starts_with(shobj_description(oid, 'pg_database'), %s)"
    return [row[0] for row in connection.execute(query, [f"{name}_", MADE])]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
