"""Connections to Redis that let few threads wait while Redis hangs.

A server that hangs accepts connections and answers nothing, so each request that asks it would keep its thread until
the client's timeout, and the requests that need no Redis would wait for a thread. After such a wait, one request at a
time asks. The others fail at once, as they do when Redis is down. A connection that is open already is still used, and
may cost one more wait.
"""

from __future__ import annotations

import time
from typing import Any

import redis

from inventory.outages import Breaker
from shop import limits

SLOW = limits.REDIS / 2
"""Seconds in vain from which a failed connection counts as a hanging server, whatever the error.

A lock gives its connections a shorter time near the end of its lease, which says nothing about the server. And a name
that cannot be looked up, such as that of a stopped container, may take as long as a server that hangs.
"""
breaker = Breaker(2 * limits.REDIS, retry=0.1)
"""Whether Redis answered when this process last opened a connection.

The pause is short, because locks are not released in it. It hardly matters to threads: only one at a time waits.
"""


class _Sparing:
    """A connection that refuses to open while Redis hangs, unless it is its caller's turn to ask."""

    def connect_check_health(self: Any, *arguments: Any, **options: Any) -> None:
        if self._sock:
            return
        if breaker.is_another_callers():
            raise redis.ConnectionError("Redis did not answer a moment ago. It is asked again within seconds.")
        begun = time.monotonic()
        try:
            super().connect_check_health(*arguments, **options)  # type: ignore[misc]
        except (redis.TimeoutError, redis.ConnectionError):
            if time.monotonic() - begun >= SLOW:
                breaker.begin()
            else:
                breaker.end_turn()
            raise
        except redis.RedisError:
            breaker.end()  # An error is an answer, too.
            raise
        breaker.end()


class Connection(_Sparing, redis.Connection):
    """A connection over TCP."""


class SSLConnection(_Sparing, redis.SSLConnection):
    """A connection over TLS."""


class UnixDomainSocketConnection(_Sparing, redis.UnixDomainSocketConnection):
    """A connection to a server on this machine."""


SPARING = {
    redis.Connection: Connection,
    redis.SSLConnection: SSLConnection,
    redis.UnixDomainSocketConnection: UnixDomainSocketConnection,
}


class ConnectionPool(redis.ConnectionPool):
    """A pool of such connections. redis-py chooses the class of a connection by the URL of its server."""

    def __init__(self, connection_class: Any = redis.Connection, **options: Any) -> None:
        super().__init__(SPARING[connection_class], **options)
