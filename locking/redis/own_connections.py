"""OwnConnections: the connections of locks to one server, outside of the client's pool.

The application, or threads that wait for a lock, may use up the pool. The holder must still be able to release the
lock, so no request of a lock waits for a connection of the pool.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import redis
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

if TYPE_CHECKING:
    from redis import ConnectionPool

MOST_IDLE = 32
"""Maximum number of idle connections that are kept for a pool. Requests are short, so few run at the same moment."""


class OwnConnections:
    """Connections to the server of a client's pool.

    A connection whose request failed or was interrupted is closed, not given back.

    Args:
        pool: supplies the address and the settings. Only a weak reference to it is kept.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = ref(pool)
        self._reset()

    def _reset(self) -> None:
        self._idle: list[Any] = []
        self._pid = os.getpid()

    def take_idle(self) -> Any:
        """Return an idle connection on which no answer is left to read, or None if there is none."""
        if self._pid != os.getpid():
            self._reset()  # after a fork the connections belong to the parent
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last idle connection
                break
            with suppress(redis.RedisError):
                if not connection.can_read():
                    return connection
            connection.disconnect()
        return None

    def put(self, connection: Any) -> None:
        """Give back a connection whose requests are all answered. It is closed if `MOST_IDLE` connections are idle."""
        if len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.disconnect()

    def drop_idle(self) -> None:
        """Close the idle connections: after a failover they may lead to a server that is no longer a primary."""
        while (connection := self.take_idle()) is not None:
            connection.disconnect()

    @property
    def pool(self) -> ConnectionPool:
        """The client's pool.

        Raises:
            redis.exceptions.ConnectionError: the client no longer exists.
        """
        pool = self._pool()
        if pool is None:
            raise redis.ConnectionError("the client was closed")
        return pool


_connections: WeakKeyDictionary[ConnectionPool, OwnConnections] = WeakKeyDictionary()


def own_connections(pool: ConnectionPool) -> OwnConnections:
    """Return the connections to the server of a pool: one object for all `RedisLock`s whose clients have this pool."""
    found = _connections.get(pool)
    return _connections.setdefault(pool, OwnConnections(pool)) if found is None else found


def open_connection(pool: ConnectionPool, seconds: float | None = None) -> Any:
    """Open a connection to the server of a pool, outside of the pool.

    Args:
        pool: supplies the address and the settings.
        seconds: time limit for connecting, and for each answer of the handshake, without retries; None for the client's
            own timeouts and retries.

    Raises:
        redis.exceptions.RedisError: no connection in time.
    """
    limits: dict[str, Any] = {}
    if seconds is not None:
        limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": Retry(NoBackoff(), 0)}
    connection = pool.connection_class(**{"driver_info": driver_info()} | pool.connection_kwargs | limits)
    connection.connect()
    return connection


@cache
def driver_info() -> DriverInfo:
    """Return redis-py's description of itself, cached because redis-py reads it from a file for each connection."""
    return DriverInfo()
