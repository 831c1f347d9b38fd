"""The servers on which schedules run: a Redis database and a Postgres database that are nobody else's."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

import psycopg
import redis
from django.core.cache import caches
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.explorer.actor import Actor
from lab.sandbox import hooks
from lab.sandbox.steps import scripts
from servers import ServerError

if TYPE_CHECKING:
    from django.core.cache.backends.base import BaseCache

TIME_PASSES = """
-- ARGV: milliseconds. Whatever expires does so that much earlier.
local keys = redis.call('KEYS', '*')
for _, key in ipairs(keys) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
        redis.call('PEXPIRE', key, left - ARGV[1])
    end
end
"""
NEXT = """
-- Returns the milliseconds until the first key expires, or -1.
local next = -1
for _, key in ipairs(redis.call('KEYS', '*')) do
    local left = redis.call('PTTL', key)
    if left >= 0 and (next < 0 or left < next) then
        next = left
    end
end
return next
"""
MARK = "lab:stage"
"""The key in a Redis database that says which stage uses it, as long as one does: of which Postgres, and database."""
EMPTY = """
-- KEYS: the mark. ARGV: what it says. Empties the database but for the mark, and returns 0. Where there are keys
-- without this mark they are not this stage's: it changes nothing, and returns how many.
local keys = redis.call('DBSIZE')
if keys > 0 and redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return keys
end
redis.call('FLUSHDB')
redis.call('SET', KEYS[1], ARGV[1])
return 0
"""
WHOSE = "SELECT format('Last Unit empties this: %s of Postgres %s', current_database(), system_identifier) "
WHOSE += "FROM pg_control_system()"

WAIT = "SELECT max(cardinality(pg_blocking_pids(pid))) FROM unnest(%s) AS pid"
WAIT_FOR_A_CLIENT = """
SELECT FROM unnest(%s) AS pid, unnest(pg_blocking_pids(pid)) AS holder
JOIN pg_stat_activity ON pg_stat_activity.pid = holder AND backend_type = 'client backend'
"""
"""Autovacuum locks a table for a moment while it shortens it, and gives way by itself: no actor is in the way."""

IN_USE = (0x4C6162, 0)
"""The advisory lock, in a stage's own Postgres database, of whoever uses the stage."""
PATIENCE = 10.0
"""Seconds in which a server has to have seen what was sent to it."""
CONNECTS = 5
"""Seconds in which a server has to let us in."""


class NotOurs(ServerError):
    """A database that a stage would empty, or make anew, holds what is not the lab's. Nothing in it was changed."""


class Clock:
    """Monotonic seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Seat:
    """What one actor brings along from one schedule to the next: his connections."""

    def __init__(self, stage: Sandbox) -> None:
        self.redis = stage.new_redis()
        self.database: hooks.StoppingDatabase | None = None
        self.cut: list[int] = []
        """The processes of Postgres that were told to end, and may be about to."""

    def leave(self) -> None:
        """Drop the connections, as a process that ends does."""
        self.redis.connection_pool.disconnect()
        if self.database is not None:
            if self.database.connection is not None:
                self.database.connection.close()
            self.database = None


class Kept(Protocol):
    """Something that is closed with the stage."""

    def close(self) -> None: ...


class Sandbox:
    """One Redis database and one Postgres database.

    Args:
        redis_url: the Redis database. It is emptied before each schedule and in the end, unless it holds what is not
            the lab's.
        database: settings of Django for the Postgres database, of which `ENGINE` is not looked at.
    """

    def __init__(self, redis_url: str, database: Mapping[str, Any]) -> None:
        self.redis_url = redis_url
        self.database = dict(database)
        self.redis: Any = redis.Redis.from_url(
            redis_url, retry=Retry(NoBackoff(), 0), socket_timeout=10, socket_connect_timeout=CONNECTS
        )
        self.clock = Clock()
        self._pass = self.redis.register_script(TIME_PASSES)
        self._next = self.redis.register_script(NEXT)
        self._empty = self.redis.register_script(EMPTY)
        self._seats: dict[str, Seat] = {}
        self._kept: dict[str, Kept] = {}
        self.nodes: dict[str, redis.Redis] = {}
        """Other Redis servers that a trial uses, by the path of their socket."""
        self.waits_in_this_process = True
        """Whether an actor may wait for another thread of this process, and not for servers alone."""
        self._eyes: psycopg.Connection[Any] | None = None
        self._taken = False
        self._mark = ""
        self._noted: dict[bytes, bytes] = {}
        self.passes_elsewhere: Callable[[float], object] | None = None
        """Lets so many seconds pass in what else a trial uses."""
        self.expires_elsewhere: Callable[[], float | None] | None = None
        """Asks how many seconds are left until something expires there; None: nothing does."""

    def take(self) -> bool:
        """Let nobody else take the stage, in any process, until `give_back` or `close`; or `eyes` is lost.

        Returns:
            False: somebody else has.

        Raises:
            NotOurs: its Redis database holds what is not the lab's.
        """
        if self.eyes.execute("SELECT pg_try_advisory_lock(%s, %s)", IN_USE).fetchone() != (True,):
            return False
        self._taken = True
        # Known from the start, even if Redis was restarted: a first run is as long as every later one.
        pipeline = self.redis.pipeline(transaction=False)
        for script in scripts():
            pipeline.script_load(script)
        pipeline.execute()
        self.empty()
        return True

    def empty(self) -> None:
        """Empty the Redis database, and keep it marked as the lab's: what a crash leaves there is known by that.

        Raises:
            NotOurs: it holds what is not the lab's.
        """
        if not self._mark:
            found: Any = self.eyes.execute(WHOSE).fetchone()
            self._mark = found[0]
        if keys := self._empty(keys=[MARK], args=[self._mark]):
            there = self.redis.connection_pool.connection_kwargs
            server = there.get("path") or f"{there.get('host')}:{there.get('port')}"
            raise NotOurs(
                f"Redis database {there.get('db', 0)} of {server} holds {keys} keys that are not this lab's, which "
                "would empty it. Lower LAB_SANDBOXES, or give the shop a Redis of its own (REDIS_URL), or empty that "
                "database yourself."
            )

    def give_back(self) -> None:
        """Let others take it.

        Raises:
            psycopg.OperationalError: others could have done so before now.
        """
        self._leave()
        if self.eyes.execute("SELECT pg_advisory_unlock(%s, %s)", IN_USE).fetchone() != (True,):
            raise psycopg.OperationalError("The stage was not ours any more.")
        self._taken = False

    def _leave(self) -> None:
        """Leave nothing in Redis: what is there when the lab comes back is somebody's.

        Raises:
            psycopg.OperationalError: somebody else may use the stage already.
            NotOurs: the mark is gone, and there are keys.
        """
        self.eyes.execute("SELECT 1")
        self.empty()
        self.redis.delete(MARK)

    def new_redis(self) -> redis.Redis:
        """A client whose commands are steps of the actor that sends them."""
        return new_client(self.redis_url)

    def kept(self, name: str, make: Callable[[], Kept]) -> Any:
        """What a trial needs again in each schedule, made when it is first asked for, and closed with the stage."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def seat(self, name: str) -> Seat:
        """The connections of the actor of that name."""
        return self._seats.setdefault(name, Seat(self))

    def sit(self, name: str) -> Seat:
        """In the actor's own thread: make Django's default connections his.

        Everything that asks for the shop's database or Redis in this thread gets those of the stage.
        """
        seat = self.seat(name)
        if seat.database is None:
            seat.database = hooks.StoppingDatabase(self.database, DEFAULT_DB_ALIAS)
            seat.database.inc_thread_sharing()
        connections[DEFAULT_DB_ALIAS] = seat.database
        caches["default"] = cast("BaseCache", _Cache(seat.redis))
        return seat

    @contextmanager
    def ours(self) -> Iterator[None]:
        """For the block, what this thread asks of Django's default connections is asked of the stage."""
        before = connections[DEFAULT_DB_ALIAS], caches["default"]
        self.sit("stage")
        try:
            yield
        finally:
            connections[DEFAULT_DB_ALIAS], caches["default"] = before

    def cut(self, actor: Actor) -> None:
        """End what an actor waits for in Postgres: he is dead, and one that waits does not notice by itself.

        It is ended by the server, as his thread is still using the connection.
        """
        seat = self._seats.get(actor.name)
        if pids := _backends(seat, actor):
            if seat is not None:
                seat.cut += pids
            self.eyes.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [pids])

    def dismiss(self, actor: Actor) -> None:
        """He is dead and his thread has ended: his connections drop, and what he has begun in Postgres ends."""
        self.cut(actor)
        seat = self._seats.pop(actor.name, None)
        pids = _backends(seat, actor) if seat is None else seat.cut
        if seat is not None:
            seat.leave()
        until = time.monotonic() + PATIENCE
        while pids and self.eyes.execute("SELECT FROM pg_stat_activity WHERE pid = ANY(%s)", [pids]).rowcount:
            if time.monotonic() > until:
                raise RuntimeError("Postgres has not noticed that somebody has gone.")

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the injected clocks, and in the TTLs of Redis alike."""
        self.clock.now += seconds
        for client in self._redises():
            self._pass(args=[round(seconds * 1000)], client=client)
        if self.passes_elsewhere is not None:
            self.passes_elsewhere(seconds)

    def note(self) -> None:
        """What Redis keeps now survives a restart."""
        self._noted = {key: self.redis.dump(key) for key in self.redis.keys("*")}

    def restart(self) -> None:
        """Redis loses what it was told since `note`.

        No server ends here: this one is everybody's, and threads of a web process cannot start another. Commands have
        one that does: see `restarting`.
        """
        # In one transaction: while a server starts nobody sees half of what it has.
        started = self.redis.pipeline()
        started.flushdb()
        for key, value in self._noted.items():
            started.restore(key, 0, value)
        started.execute()

    def until_expiry(self) -> float | None:
        """Seconds until the first key expires; None when none does."""
        left = [left / 1000 for client in self._redises() if (left := self._next(client=client)) >= 0]
        if self.expires_elsewhere is not None and (there := self.expires_elsewhere()) is not None:
            left.append(max(0.0, there))
        return min(left) if left else None

    def looks(self, names: Collection[str]) -> Sequence[Any]:
        """What Redis keeps under these keys, and whether it expires: what somebody who looks again could notice."""
        if self.nodes:
            return [time.monotonic_ns()]  # it may have been changed on another server
        pipeline = self.redis.pipeline(transaction=False)
        for name in names:
            pipeline.dump(name)
            pipeline.expiretime(name)
        said = pipeline.execute()
        return [left if place % 2 == 0 else left < 0 for place, left in enumerate(said)]

    def is_blocked(self, actor: Actor) -> bool:
        """Whether an actor waits for somebody else, as his server sees it."""
        if isinstance(actor.listens_to, hooks.Bell):
            return not actor.listens_to.rang()
        if actor.listens_to is not None:
            return self._is_blocked_in_redis(actor.listens_to)
        pids = _backends(self._seats.get(actor.name), actor)
        # Who is in the way is asked only where somebody is: it takes the server longer.
        if (
            pids
            and self.eyes.execute(WAIT, [pids]).fetchone() != (0,)
            and self.eyes.execute(WAIT_FOR_A_CLIENT, [pids]).rowcount
        ):
            return True
        return self.waits_in_this_process and actor.waits_in_this_process()

    def _is_blocked_in_redis(self, connection: Any) -> bool:
        server: Any = self.nodes.get(getattr(connection, "path", ""), self.redis)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = server.client_list(client_id=[connection.number])
            if not found or "b" in found[0]["flags"]:
                return bool(found)
            if found[0]["cmd"] == "blpop":
                return False
        raise RuntimeError("Redis has not seen what was sent to it.")

    def _redises(self) -> list[Any]:
        return [self.redis, *self.nodes.values()]

    @property
    def eyes(self) -> psycopg.Connection[Any]:
        """A connection that looks at what waits in Postgres. No step of anybody.

        While the stage is taken it is not opened anew: whoever lost it does not have the stage any more.
        """
        if self._eyes is None or (self._eyes.closed and not self._taken):
            self._eyes = psycopg.connect(
                make_conninfo(
                    self.conninfo,
                    connect_timeout=CONNECTS,
                    application_name=f"the lab, in process {os.getpid()} of {socket.gethostname()}",
                ),
                autocommit=True,
                prepare_threshold=1,
            )
        return self._eyes

    @property
    def conninfo(self) -> str:
        """The Postgres database, as libpq's connection string."""
        return make_conninfo("", **address(self.database))

    def close(self) -> None:
        """Drop every connection, close what was kept, and let others take the stage."""
        try:
            for kept in self._kept.values():
                kept.close()
            self._kept.clear()
            for seat in self._seats.values():
                seat.leave()
            self._seats.clear()
            if self._taken:
                with suppress(psycopg.Error, redis.RedisError, NotOurs):
                    self._leave()
            self.redis.close()
        finally:
            if self._eyes is not None:
                with suppress(psycopg.Error):
                    # Now, and not when the server notices that we have gone.
                    self._eyes.execute("SELECT pg_advisory_unlock_all()")
                self._eyes.close()
            self._taken = False


def address(database: Mapping[str, Any]) -> dict[str, Any]:
    """Where a Postgres database is, as libpq's parameters.

    Args:
        database: Django's settings of it.
    """
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    wanted = hooks.StoppingDatabase(dict(database), DEFAULT_DB_ALIAS).get_connection_params()
    return {name: value for name, value in wanted.items() if name in known}


def new_client(url: str) -> redis.Redis:
    """A client whose commands are steps of the actor that sends them."""
    kind = hooks.StoppingSocket if url.startswith("unix:") else hooks.StoppingConnection
    pool = redis.ConnectionPool.from_url(url, connection_class=kind, retry=Retry(NoBackoff(), 0), socket_timeout=10)
    return redis.Redis(connection_pool=pool)


def _backends(seat: Seat | None, actor: Actor) -> list[int]:
    """The processes of Postgres that serve an actor."""
    pids = []
    # Read once: the actor may be giving it back.
    database = None if seat is None or seat.database is None else seat.database.connection
    if database is not None:
        with suppress(psycopg.OperationalError):  # or closing it: then no process serves him there
            pids.append(database.info.backend_pid)
    if actor.session is not None:
        pids.append(actor.session.pid)
    return pids


class _Cache:
    """As much of django-redis's cache as `get_redis_connection` asks for."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = self
        self._redis = client

    def get_client(self, write: bool = True) -> redis.Redis:  # noqa: FBT001, FBT002 - django-redis's own signature
        return self._redis
