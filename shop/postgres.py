"""Connections to Postgres that do not wait for ever."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors

from shop import limits

# libpq ignores the last five for a Unix socket.
CONNECTION = {
    "connect_timeout": limits.POSTGRES_CONNECT,
    "tcp_user_timeout": limits.POSTGRES_SILENCE * 1000,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}
"""Options of libpq that limit the wait for a lost server. They are in seconds, `tcp_user_timeout` in milliseconds."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when Postgres does not answer within `limits.POSTGRES_SILENCE`.

    The limits that Postgres keeps end no wait while it is stopped itself, and TCP's end none while its host is alive.

    Attributes:
        silence: seconds to wait for an answer; None for `limits.POSTGRES_SILENCE`.
    """

    silence: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for an answer.

        Raises:
            OperationalError: there was none. It is unknown whether the statement was executed.
        """
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        seconds = limits.POSTGRES_SILENCE if self.silence is None else self.silence
        try:
            return super().wait(gen, interval, seconds)
        except errors._WaitTimeout as silence:
            self.close()
            raise psycopg.OperationalError(f"no answer for {seconds} s") from silence
