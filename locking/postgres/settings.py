"""Settings of a session in Postgres: how it connects, and which settings of the server it overrides."""

from __future__ import annotations

import math
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

LONGEST_WAIT = 2_000_000.0
"""Longest wait in seconds (23 days): client and server count milliseconds in 32 bits. A longer wait ends after this
time."""

APPLICATION_NAME_BYTES = 63

# The client's kernel notices a silent network after 15 seconds, the server's kernel after 40.
# A holder must learn of a lost connection before the server gives the holder's lock to another client.
# `tcp_user_timeout` also ends a failed attempt to connect, so that libpq tries the next of several hosts.
CONNECTION_PARAMETERS = {
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "6000",
}

SETTINGS = """
SELECT set_config(name, value, false), pg_is_in_recovery()
FROM (VALUES
    ('default_transaction_isolation', 'read committed'),
    ('lock_timeout', $1),
    ('statement_timeout', '0'),
    ('transaction_timeout', '0'),
    ('idle_session_timeout', $2),
    ('idle_in_transaction_session_timeout', '0'),
    ('tcp_keepalives_idle', '20'),
    ('tcp_keepalives_interval', '10'),
    ('tcp_keepalives_count', '2'),
    ('tcp_user_timeout', '40000')
) AS wanted (name, value)
WHERE current_setting(name, true) IS NOT NULL
"""
"""Pin the settings of the session, so that no server default can end a grant or abort a waiter.

A stricter default isolation level would abort waiters. Read-only mode is not changed, because an operator sets it on
purpose. Settings that an older server does not have are skipped. The last column says whether the server is a standby;
libpq's own check may see an outdated value that a pooler has cached.

$1 `lock_timeout`, $2 `idle_session_timeout` (Postgres 14 or later).
"""


def parameters(conninfo: str) -> dict[str, Any]:
    """Return the parameters of a libpq connection string or URL.

    Raises:
        TypeError: `conninfo` is not a `str`.
        ValueError: `conninfo` cannot be parsed.
    """
    if not isinstance(conninfo, str):  # for None, libpq would connect to its default server
        raise TypeError(f"conninfo must be a libpq connection string, not {conninfo!r}")
    if "\0" in conninfo:  # libpq would use only the part before the zero byte
        raise ValueError("conninfo is not a libpq connection string: it contains a zero byte")
    try:
        return dict(conninfo_to_dict(conninfo))
    except (psycopg.ProgrammingError, UnicodeEncodeError) as error:
        raise ValueError(f"conninfo is not a libpq connection string: {str(error).strip()}") from error


def server_milliseconds(seconds: float) -> int:
    """Return a time limit in the server's milliseconds; at least 1, because 0 would mean no limit."""
    return max(1, math.ceil(min(seconds, LONGEST_WAIT) * 1000))
