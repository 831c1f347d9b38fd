"""The sandbox of a schedule: a Redis database and a Postgres database that nothing else uses."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import psycopg
import redis
from django.core.cache import caches
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.conninfo import make_conninfo

from lab.explorer.actor import Actor
from lab.sandbox import hooks
from lab.sandbox.clock import VirtualClock
from lab.sandbox.connections import ActorConnections, address, backends_of
from lab.sandbox.local_waits import waits_for_a_thread
from lab.sandbox.redis_database import CONNECT_TIMEOUT, NotOurs, RedisDatabase

MARK_TEXT = "SELECT format('Last Unit empties this: %s of Postgres %s', current_database(), system_identifier) "
MARK_TEXT += "FROM pg_control_system()"

COUNT_BLOCKERS = "SELECT max(cardinality(pg_blocking_pids(pid))) FROM unnest(%s) AS pid"
BLOCKED_BY_A_CLIENT = """
SELECT FROM unnest(%s) AS pid, unnest(pg_blocking_pids(pid)) AS holder
JOIN pg_stat_activity ON pg_stat_activity.pid = holder AND backend_type = 'client backend'
"""
"""Finds backends that wait for a client's backend. A short wait for autovacuum does not count: it ends by itself."""

IN_USE = (0x4C6162, 0)
"""Advisory lock on a sandbox's own Postgres database. The process that uses the sandbox holds it."""
RESPONSE_TIMEOUT = 10.0
"""Seconds within which a server must react to a request."""


class Resource(Protocol):
    """An object that is closed together with the sandbox."""

    def close(self) -> None: ...


class LeaseServer(Protocol):
    """A server other than Redis on which leases expire as time passes in the schedule."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass: make every lease end earlier."""
        ...

    def until_expiry(self) -> float | None:
        """Return the seconds until the first lease ends. None if no lease ends."""
        ...


class Sandbox:
    """One Redis database and one Postgres database. It implements `lab.explorer.experiment.Environment`.

    Args:
        redis_url: the Redis database. It is emptied before each schedule and at the end. It is never emptied if it has
            data that is not the lab's.
        database: Django's settings of the Postgres database. `ENGINE` is ignored.

    Attributes:
        redis: a client whose commands are not steps.
        clock: the clock of the schedule.
        nodes: additional Redis servers that the current experiment uses, by socket path.
        leases: another server on which leases expire as time passes in the schedule, or None.
        local_waits: whether an actor that waits for another thread of this process counts as blocked.
    """

    def __init__(self, redis_url: str, database: Mapping[str, Any]) -> None:
        self.redis_url = redis_url
        self.database = dict(database)
        self._redis = RedisDatabase(redis_url)
        self.redis: Any = self._redis.client
        self.clock = VirtualClock()
        self.nodes: dict[str, redis.Redis] = {}
        self.leases: LeaseServer | None = None
        self.local_waits = True
        self._connections: dict[str, ActorConnections] = {}
        self._resources: dict[str, Resource] = {}
        self._observer: psycopg.Connection[Any] | None = None
        self._acquired = False
        self._mark = ""

    # Reserve and release

    def acquire(self) -> bool:
        """Reserve the sandbox among all processes.

        The reservation lasts until `release` or `close`, or until the connection of `observer` is lost.

        Returns:
            False if the sandbox is in use.

        Raises:
            NotOurs: its Redis database holds keys that are not the lab's.
        """
        if self.observer.execute("SELECT pg_try_advisory_lock(%s, %s)", IN_USE).fetchone() != (True,):
            return False
        self._acquired = True
        self._redis.load_scripts()
        self.empty()
        return True

    def empty(self) -> None:
        """Empty the Redis database and mark it as the lab's.

        Raises:
            NotOurs: the database holds keys that are not the lab's.
        """
        if not self._mark:
            found: Any = self.observer.execute(MARK_TEXT).fetchone()
            self._mark = found[0]
        self._redis.empty(self._mark)

    def release(self) -> None:
        """Let others use the sandbox.

        Raises:
            psycopg.OperationalError: the reservation had been lost.
        """
        self._clean()
        if self.observer.execute("SELECT pg_advisory_unlock(%s, %s)", IN_USE).fetchone() != (True,):
            raise psycopg.OperationalError("The reservation of this sandbox was lost.")
        self._acquired = False

    def close(self) -> None:
        """Close every connection and resource, and let others use the sandbox."""
        try:
            for resource in self._resources.values():
                resource.close()
            self._resources.clear()
            for held in self._connections.values():
                held.close()
            self._connections.clear()
            if self._acquired:
                with suppress(psycopg.Error, redis.RedisError, NotOurs):
                    self._clean()
            self.redis.close()
        finally:
            if self._observer is not None:
                with suppress(psycopg.Error):
                    # Unlock now. Otherwise the sandbox stays reserved until the server notices that the connection is
                    # closed.
                    self._observer.execute("SELECT pg_advisory_unlock_all()")
                self._observer.close()
            self._acquired = False

    def _clean(self) -> None:
        """Delete all keys in Redis. Otherwise they would later count as data of others.

        Raises:
            psycopg.OperationalError: the reservation may be lost, and another process may use the sandbox.
            NotOurs: Redis has keys, but no longer the mark of the sandbox.
        """
        self.observer.execute("SELECT 1")
        self.empty()
        self._redis.unmark()

    def resource(self, name: str, make: Callable[[], Resource]) -> Any:
        """Return a resource that experiments share. `make` creates it on first use; the sandbox's `close` closes it."""
        if name not in self._resources:
            self._resources[name] = make()
        return self._resources[name]

    # Connections

    @property
    def observer(self) -> psycopg.Connection[Any]:
        """The connection that queries Postgres about waiting backends. Its statements are not steps.

        This connection also holds the reservation of the sandbox, which ends when the connection closes. So it is not
        reopened while the sandbox is reserved.
        """
        if self._observer is None or (self._observer.closed and not self._acquired):
            self._observer = psycopg.connect(
                make_conninfo(
                    self.conninfo,
                    connect_timeout=CONNECT_TIMEOUT,
                    application_name=f"the lab, in process {os.getpid()} of {socket.gethostname()}",
                ),
                autocommit=True,
                prepare_threshold=1,
            )
        return self._observer

    @property
    def conninfo(self) -> str:
        """The connection string of the Postgres database for libpq."""
        return make_conninfo("", **address(self.database))

    def connect_thread(self, name: str) -> ActorConnections:
        """Make the connections with this name, usually an actor's, Django's defaults in the calling thread.

        Code in this thread that uses the shop's database or Redis then uses the sandbox's.
        """
        held = self._connections.get(name)
        if held is None:
            held = self._connections[name] = ActorConnections(self.redis_url, self.database)
        held.use_in_thread()
        return held

    @contextmanager
    def as_default(self) -> Iterator[None]:
        """Inside the `with` block, let Django use the sandbox as its default database and cache in this thread."""
        before = connections[DEFAULT_DB_ALIAS], caches["default"]
        self.connect_thread("stage")
        try:
            yield
        finally:
            connections[DEFAULT_DB_ALIAS], caches["default"] = before

    # Time, and the data in Redis

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the schedule's clock and in the TTLs of the servers."""
        self.clock.now += seconds
        self._redis.pass_time(seconds, self.nodes.values())
        if self.leases is not None:
            self.leases.pass_time(seconds)

    def until_expiry(self) -> float | None:
        """Return the seconds until the first key or lease expires. None if none will expire."""
        left = self._redis.expiries(self.nodes.values())
        if self.leases is not None and (there := self.leases.until_expiry()) is not None:
            left.append(max(0.0, there))
        return min(left) if left else None

    def any_expires(self, names: Collection[str]) -> bool:
        """Return whether at least one of these keys has a TTL."""
        return any(server.pttl(name) > 0 for server in (self.redis, *self.nodes.values()) for name in names)

    def fingerprint(self, names: Collection[str]) -> Sequence[Any]:
        """Return a value that changes when an actor can see that one of these keys has changed."""
        if self.nodes:
            return [time.monotonic_ns()]  # unique each time, because the change may be on another server
        return self._redis.fingerprint(names)

    def save_snapshot(self) -> None:
        """Keep a copy of the present data of Redis, to which `restart` returns."""
        self._redis.save_snapshot()

    def restart(self) -> None:
        """Make Redis lose all writes since `save_snapshot`.

        No server is restarted here: the shop uses the same server, and threads of a web process cannot start a server.
        Commands use `RestartingSandbox`, which restarts its own server.
        """
        self._redis.restore_snapshot()

    # Waits of actors

    def is_blocked(self, actor: Actor) -> bool:
        """Ask the servers whether an actor waits for another actor.

        If `local_waits` is true, also return True for an actor that waits for another thread of this process.
        """
        if isinstance(actor.listens_to, hooks.Notification):
            return not actor.listens_to.arrived()
        if actor.listens_to is not None:
            return self._is_blocked_in_redis(actor.listens_to)
        pids = backends_of(self._connections.get(actor.name), actor)
        # The query `BLOCKED_BY_A_CLIENT` is slow. So first ask whether any backend blocks the actor's backends.
        if (
            pids
            and self.observer.execute(COUNT_BLOCKERS, [pids]).fetchone() != (0,)
            and self.observer.execute(BLOCKED_BY_A_CLIENT, [pids]).rowcount
        ):
            return True
        return self.local_waits and waits_for_a_thread(actor)

    def waits_for_a_thread(self, actor: Actor) -> bool:
        """Return whether an actor waits for another thread of this process."""
        return waits_for_a_thread(actor)

    def _is_blocked_in_redis(self, connection: Any) -> bool:
        server: Any = self.nodes.get(getattr(connection, "path", ""), self.redis)
        until = time.monotonic() + RESPONSE_TIMEOUT
        while time.monotonic() < until:
            found = server.client_list(client_id=[connection.client_id])
            if not found or "b" in found[0]["flags"]:
                return bool(found)
            if found[0]["cmd"] == "blpop":
                return False
        raise RuntimeError("Redis has not received the command that an actor has sent.")

    def terminate(self, actor: Actor) -> None:
        """End the Postgres backends of a crashed actor.

        While the actor's thread waits for a backend, the thread cannot notice the crash. The thread still uses the
        connections, so they cannot be closed here. The server has to end the backends.
        """
        held = self._connections.get(actor.name)
        if pids := backends_of(held, actor):
            if held is not None:
                held.terminated += pids
            self.observer.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [pids])

    def disconnect(self, actor: Actor) -> None:
        """Drop the connections of a crashed actor whose thread has ended. Wait until its Postgres backends are gone."""
        self.terminate(actor)
        held = self._connections.pop(actor.name, None)
        pids = backends_of(held, actor) if held is None else held.terminated
        if held is not None:
            held.close()
        until = time.monotonic() + RESPONSE_TIMEOUT
        while pids and self.observer.execute("SELECT FROM pg_stat_activity WHERE pid = ANY(%s)", [pids]).rowcount:
            if time.monotonic() > until:
                raise RuntimeError("Postgres has not ended the backends of a crashed actor.")
