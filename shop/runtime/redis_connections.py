"""Connections to Redis that keep few threads while Redis hangs.

A server that hangs accepts connections and answers nothing, so each request that asks it would keep its thread until
the client's timeout, and the requests that need no Redis would wait for a thread. After such a timeout, one request a
second asks, and the others fail at once, as they do when Redis is down.
"""

from __future__ import annotations

from typing import Any

import redis

from inventory.outages import Breaker
from shop import limits

breaker = Breaker(2 * limits.REDIS)
"""Whether Redis answered when this process last opened a connection."""


class _Sparing:
    """A connection that is not opened while Redis hangs, unless it is its turn to ask."""

    def connect_check_health(self: Any, *arguments: Any, **options: Any) -> None:
        if self._sock:
            return
        if breaker.is_another_callers():
            raise redis.ConnectionError("Redis did not answer a moment ago. It is asked again within seconds.")
        try:
            super().connect_check_health(*arguments, **options)  # type: ignore[misc]
        except redis.TimeoutError:
            breaker.begin()
            raise
        except redis.ConnectionError:
            breaker.end_turn()
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
