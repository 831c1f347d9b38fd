"""Check Postgres: whether it answers and accepts writes, and whether the settings fit a pooler in front of it.

A pooler, such as PgBouncer, accepts connections while Postgres is down, and reports the version that Postgres had
before. So the check runs a statement, and waits for the result for a limited time.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from shop import limits
from shop.postgres import BoundedConnection

ASK = """
SELECT
    current_setting('server_version'),
    NOT current_setting('transaction_read_only')::boolean,
    pg_backend_pid(),
    format('ALTER ROLE %%I IN DATABASE %%I SET', session_user, current_database()),
    (SELECT json_object_agg(name, setting::int) FROM pg_settings WHERE name = ANY(%s))
"""

UNEXPECTED = (
    "A pooler such as PgBouncer stands between the shop and Postgres. Set DATABASE_POOLER=1 for every process of the "
    "shop. Without it, prepared statements of different requests are mixed up, and no limit ends the wait for Postgres."
)


@dataclass(frozen=True)
class Look:
    """The result of checking Postgres over a new connection.

    Args:
        version: version of the server; None if it did not answer.
        writes: whether the connection may write.
        wrong: what is wrong with the settings, and how to correct it; empty if they are right.
    """

    version: str | None = None
    writes: bool = False
    wrong: str = ""


def look(seconds: float, *, web: bool = True, **parameters: str) -> Look:
    """Check the Postgres of the settings over a new connection.

    Args:
        seconds: time limit for the connection, and again for the answer.
        web: also check that the time limits that the web server needs are in force.
        parameters: parameters of libpq that replace those of the settings.
    """
    try:
        wanted = {**connection.get_connection_params(), "connect_timeout": round(seconds), **parameters}
        with closing(BoundedConnection.connect(**wanted, autocommit=True)) as asked:
            asked.silence = seconds
            told = asked.info.backend_pid
            (row,) = asked.execute(ASK, [list(limits.POSTGRES)])
    except psycopg.Error as error:
        return Look(wrong=_refused(str(error)) if "unsupported startup parameter" in str(error) else "")
    version, writes, process, alter_role, in_force = row
    # A pooler tells its clients a made-up process id, which differs from `pg_backend_pid()` in Postgres.
    if process != told and not settings.DATABASE_POOLER:
        return Look(version, writes, UNEXPECTED)
    if settings.DATABASE_POOLER and web:
        return Look(version, writes, _without_limits(in_force, alter_role))
    return Look(version, writes)


def refuse_unknown_pooler(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Check the first connection of a process for a pooler that the settings do not name.

    Behind such a pooler, a process could run prepared statements of other clients.

    Raises:
        ImproperlyConfigured: there is a pooler, and `DATABASE_POOLER` is not set.
    """
    if not settings.DATABASE_POOLER:
        made = connection.connection
        if made.execute("SELECT pg_backend_pid()").fetchone() != (made.info.backend_pid,):
            connection.close()
            raise ImproperlyConfigured(UNEXPECTED)
    connection_created.disconnect(refuse_unknown_pooler)


def _refused(error: str) -> str:
    if settings.DATABASE_POOLER:
        return f"The pooler refuses what DATABASE_URL or a variable such as PGOPTIONS asks of it. Remove that. {error}"
    return UNEXPECTED


def _without_limits(in_force: dict[str, int], alter_role: str) -> str:
    """Return how to set the limits that are not in force; empty if all limits are in force.

    Args:
        in_force: milliseconds by the name of the limit; 0 if there is no limit.
        alter_role: the beginning of the SQL statement that sets a limit.
    """
    missing = {name: most for name, most in limits.POSTGRES.items() if not 0 < in_force[name] <= most * 1000}
    if not missing:
        return ""
    statements = " ".join(f"{alter_role} {name} = '{most}s';" for name, most in missing.items())
    return (
        "Requests would wait too long for Postgres, because the pooler does not pass on the limits of the web server. "
        f"Set them for its role, then have the pooler open new connections (RECONNECT in PgBouncer, or restart it): "
        f"{statements}"
    )
