"""Connections to Redis that keep few threads waiting while Redis hangs.

A server that hangs accepts connections but answers no command. Each request that needs Redis would keep its thread
until the client's timeout, and requests that do not need Redis would find no free thread. So after one timeout, only
one request at a time tries to connect. The other requests fail at once, as they do when Redis is down. Connections that
are already open are still used: each of them may cost one more timeout.
"""

from __future__ import annotations

import time
from typing import Any

import redis

from inventory.outages import Breaker
from shop import limits

SLOW = limits.REDIS / 2
"""If an attempt to connect fails after at least this number of seconds, the server counts as hanging.

The kind of error does not matter: the lookup of a host name, such as that of a stopped container, may take as long
before it fails. A failure after less time proves nothing, because a lock gives its connections less time near the end
of its lease.
"""
breaker = Breaker(2 * limits.REDIS, retry=0.1)
"""The circuit breaker that is open while Redis hangs.

`retry` is short, because a lock that needs a new connection cannot be released while the breaker is open. A short
`retry` costs little, because only one thread at a time waits.
"""


class _Sparing:
    """A connection to Redis. While Redis hangs, one caller at a time tries to connect; others get an error at once."""

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
            breaker.end()  # Redis has answered with an error, so it does not hang.
            raise
        breaker.end()


class Connection(_Sparing, redis.Connection):
    """A connection to Redis over TCP."""


class SSLConnection(_Sparing, redis.SSLConnection):
    """A connection to Redis over TLS."""


class UnixDomainSocketConnection(_Sparing, redis.UnixDomainSocketConnection):
    """A connection to a Redis on this machine over a Unix socket."""


SPARING = {
    redis.Connection: Connection,
    redis.SSLConnection: SSLConnection,
    redis.UnixDomainSocketConnection: UnixDomainSocketConnection,
}


class ConnectionPool(redis.ConnectionPool):
    """A connection pool that replaces each connection class of redis-py by the class above that extends it."""

    def __init__(self, connection_class: Any = redis.Connection, **options: Any) -> None:
        super().__init__(SPARING[connection_class], **options)
