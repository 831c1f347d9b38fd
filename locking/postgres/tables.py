"""The tables of RowLock and InsertLock. Create them once, with `create_lock_tables` or in a migration."""

from __future__ import annotations

from typing import Any

from locking.errors import LockError
from locking.postgres.advisory import AdvisoryLock
from locking.postgres.errors import UNDEFINED_TABLE, StatementRefused
from locking.postgres.names import require_storable_name
from locking.postgres.session import PostgresSession
from locking.postgres.settings import parameters

LOCK_TABLES = """
CREATE TABLE IF NOT EXISTS lock_row (
    name text PRIMARY KEY,
    fence bigint NOT NULL DEFAULT 0    -- of the last grant that was released
);
CREATE TABLE IF NOT EXISTS lock_grant (
    name text PRIMARY KEY,             -- there is one grant of a lock, or none
    owner text NOT NULL,               -- the token of the lease
    expires timestamptz NOT NULL       -- by the server's clock
);
CREATE SEQUENCE IF NOT EXISTS lock_fence;
"""
"""SQL that creates the tables, for a migration of the application or for `create_lock_tables`."""


class NoSuchLock(LockError):
    """The table or the row of a lock does not exist. Create it before the lock is used."""


def create_lock_tables(conninfo: str) -> None:
    """Create the tables of `LOCK_TABLES` that do not exist yet.

    Args:
        conninfo: where to connect, as for `psycopg.connect`.

    Raises:
        ValueError: `conninfo` cannot be parsed.
        LockUnavailable: the server could not be reached, or refused a statement.
    """
    # Concurrent CREATE IF NOT EXISTS statements can fail, so only one client at a time runs them.
    with (
        AdvisoryLock(conninfo, "create lock tables").hold(),
        PostgresSession(parameters(conninfo), "tables") as session,
    ):
        session.ask(LOCK_TABLES)


def add_row(conninfo: str, name: str) -> None:
    """Create the row that a `RowLock` of this name locks, if it does not exist yet.

    Args:
        conninfo: where to connect, as for `psycopg.connect`.
        name: name of the lock.

    Raises:
        ValueError: the name is empty or not valid text for Postgres, or `conninfo` cannot be parsed.
        LockUnavailable: the server could not be reached, or refused the statement.
        NoSuchLock: the table does not exist.
    """
    name = require_storable_name(name)
    with PostgresSession(parameters(conninfo), name) as session:
        ask_table(session, name, "INSERT INTO lock_row (name) VALUES ($1) ON CONFLICT DO NOTHING", name)


def ask_table(session: PostgresSession, lock: str, statement: str, *values: str, **options: Any) -> list[str | None]:
    """Run a statement on a lock table, as `PostgresSession.ask` does.

    Raises:
        NoSuchLock: the table does not exist.
    """
    try:
        return session.ask(statement, *values, **options)
    except StatementRefused as refused:
        if refused.sqlstate == UNDEFINED_TABLE:
            raise NoSuchLock(
                f"The table of lock {lock!r} does not exist. Create it once: "
                "locking.postgres.create_lock_tables(conninfo)"
            ) from refused
        raise
