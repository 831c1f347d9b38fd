"""Connections to Postgres that limit every wait."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors

from shop import limits

# For a Unix socket, libpq ignores all of these options except `connect_timeout`.
CONNECTION = {
    "connect_timeout": limits.POSTGRES_CONNECT,
    "tcp_user_timeout": limits.POSTGRES_SILENCE * 1000,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}
"""Options of libpq that limit the wait for a server that is cut off.

`tcp_user_timeout` is in milliseconds, the other times are in seconds.
"""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself when Postgres does not answer within `limits.POSTGRES_SILENCE`.

    Other limits do not help when the server process hangs: Postgres cannot enforce its own timeouts then, and TCP's
    timeouts only act when the host is dead.

    Attributes:
        silence: seconds to wait for an answer; None for `limits.POSTGRES_SILENCE`.
    """

    silence: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for an answer of Postgres.

        Raises:
            OperationalError: no answer came in time. Postgres may or may not have executed the statement.
        """
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        seconds = limits.POSTGRES_SILENCE if self.silence is None else self.silence
        try:
            return super().wait(gen, interval, seconds)
        except errors._WaitTimeout as silence:
            self.close()
            raise psycopg.OperationalError(f"no answer for {seconds} s") from silence
