"""The connections of one actor, which it keeps from one schedule to the next."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import psycopg
import redis
from django.core.cache import caches
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.pq import Conninfo

from lab.explorer.actor import Actor
from lab.sandbox import hooks
from lab.sandbox.redis_database import stepping_client

if TYPE_CHECKING:
    from django.core.cache.backends.base import BaseCache


class ActorConnections:
    """An actor's client of Redis and its connection to Postgres. Their commands are steps of the actor.

    Args:
        redis_url: the Redis database.
        database: Django's settings of the Postgres database.
    """

    def __init__(self, redis_url: str, database: Mapping[str, Any]) -> None:
        self.redis = stepping_client(redis_url)
        self.database: hooks.StoppingDatabase | None = None
        self.terminated: list[int] = []
        """Process ids of the Postgres backends that were told to end. Some may still run."""
        self._settings = dict(database)

    def use_in_thread(self) -> None:
        """Make these connections the default database and cache of Django in the calling thread."""
        if self.database is None:
            self.database = hooks.StoppingDatabase(self._settings, DEFAULT_DB_ALIAS)
            self.database.inc_thread_sharing()
        connections[DEFAULT_DB_ALIAS] = self.database
        caches["default"] = cast("BaseCache", _Cache(self.redis))

    def close(self) -> None:
        """Drop the connections, as the end of a process does."""
        self.redis.connection_pool.disconnect()
        if self.database is not None:
            if self.database.connection is not None:
                self.database.connection.close()
            self.database = None


class _Cache:
    """The part of django-redis's cache class that `get_redis_connection` needs."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = self
        self._redis = client

    def get_client(self, write: bool = True) -> redis.Redis:  # noqa: FBT001, FBT002 - django-redis's own signature
        return self._redis


def address(database: Mapping[str, Any]) -> dict[str, Any]:
    """Return how to connect to a Postgres database, as parameters of libpq.

    Args:
        database: Django's settings of the database.
    """
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    wanted = hooks.StoppingDatabase(dict(database), DEFAULT_DB_ALIAS).get_connection_params()
    return {name: value for name, value in wanted.items() if name in known}


def backends_of(held: ActorConnections | None, actor: Actor) -> list[int]:
    """Return the process ids of the Postgres backends of an actor: for its connection and for its lock's session."""
    pids = []
    # Read the attribute once: the actor's thread may be closing the connection.
    database = None if held is None or held.database is None else held.database.connection
    if database is not None:
        with suppress(psycopg.OperationalError):  # a connection that was just closed has no backend
            pids.append(database.info.backend_pid)
    if actor.session is not None:
        pids.append(actor.session.pid)
    return pids
