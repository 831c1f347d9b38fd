"""What the Redis locks say to a server: scripts, each within a time limit of its own.

The client's `execute_command` is not used, because it may try ten times without saying so, and a lock has to know when
a request was left without an answer: the grant may have been given, the release may have been done.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.driver_info import DriverInfo
from redis.exceptions import MovedError, NoScriptError, RedisClusterException
from redis.retry import Retry

from locking.errors import LockUnavailable

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

    Client = Redis | RedisCluster

logger = logging.getLogger(__name__)

Command = tuple[Any, ...]

NO_ANSWER = (redis.ConnectionError, redis.TimeoutError)
"""What redis-py raises when there is no connection, or no answer."""

SHORTEST = 0.001
"""Seconds: no time at all would make a socket non-blocking."""

SCRIPTS = Path(__file__).with_name("scripts")


@cache
def script(name: str) -> tuple[str, str]:
    """Return the text of `scripts/<name>.lua`, and the digest by which a server that has seen it runs it."""
    text = (SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


class NoNode(LockUnavailable, redis.ConnectionError):
    """No node of the cluster is known to have a key: for the caller of a lock, and for us, who could not connect."""


def pool_of(client: Client, key: str) -> ConnectionPool:
    """Return the connections to the server that has the key: a cluster's client has a pool for each node.

    Raises:
        NoNode: the client knows of none.
    """
    if isinstance(client, RedisCluster):
        try:
            node = cast(Any, client).get_node_from_key(key)
            return client.get_redis_connection(node).connection_pool
        except RedisClusterException as error:  # which is no RedisError
            raise NoNode(f"No node of the Redis cluster has {key!r} ({error}). Try again.") from error
    return client.connection_pool


class Call(NamedTuple):
    """One run of a script: its name, KEYS and ARGV.

    Args:
        replicas: how many replicas have to have what it wrote before it counts.
    """

    script: str
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    replicas: int = 0

    @property
    def by_digest(self) -> Command:
        """The command that does it on a server that knows the script."""
        return ("EVALSHA", script(self.script)[1], len(self.keys), *self.keys, *self.args)

    @property
    def in_full(self) -> Command:
        """The command that does it on any server, which knows the script from then on."""
        return ("EVAL", script(self.script)[0], len(self.keys), *self.keys, *self.args)


def request(
    client: Client,
    lock: str,
    call: Call,
    *,
    seconds: float,
    on: Any = None,
    undo: Callable[[], Sequence[Call]] | None = None,
) -> Any:
    """Run a script once and return its answer.

    A server that has lost its scripts (SCRIPT FLUSH, restart) is sent the whole text, and a node of a cluster that has
    handed the key to another one has done nothing, so the other one is asked. Connecting follows the timeouts and
    retries of the client and is not part of the time limit.

    Args:
        client: whose pool the connection comes from.
        lock: the name of the lock, for messages.
        call: what to run.
        seconds: how long to wait for the answer, or the client's own `socket_timeout` when that is shorter.
        on: an idle connection that the caller has borrowed already.
        undo: gives what to run behind a request that fails or whose answer does not come. A server that is merely slow
            gets it after the request, as both travel on one connection; when that was cut, a new one is tried.

    Raises:
        LockUnavailable: no connection, no answer, an error instead of one, or too few replicas.
    """
    try:
        try:
            return _request(pool_of(client, call.keys[0]), call, seconds, on, undo)
        except MovedError as moved:
            cast("RedisCluster", client).nodes_manager.move_slot(moved)
            return _request(pool_of(client, call.keys[0]), call, seconds, None, undo)
    except NO_ANSWER as error:
        if isinstance(client, RedisCluster):  # whoever has taken over from a dead node is asked next time
            with suppress(redis.RedisError, RedisClusterException):
                client.nodes_manager.initialize()
        raise LockUnavailable(
            f"The Redis server did not answer for lock {lock!r} ({error}). Try again; if that does not help, see "
            "whether it runs, and whether the client's max_connections and socket_timeout are enough."
        ) from error
    except redis.RedisError as error:
        raise LockUnavailable(f"The Redis server refused what lock {lock!r} asked for: {error}") from error


def _request(
    pool: ConnectionPool, call: Call, seconds: float, on: Any, undo: Callable[[], Sequence[Call]] | None
) -> Any:
    connection: Any = pool.get_connection() if on is None else on
    try:
        return _run(connection, call, seconds)
    except MovedError:  # nothing was done here
        raise
    except BaseException:
        try:
            if undo is not None:
                steps = connection.pack_commands([step.in_full for step in undo()])
                with suppress(redis.RedisError):
                    # Without the client's health check, which would send a PING first and wait for its answer.
                    connection.send_packed_command(steps, check_health=False)
        finally:
            # A late answer must not be taken for the answer to the next request on this connection.
            connection.disconnect()
        raise
    finally:
        if on is None:
            pool.release(connection)


def _run(connection: Any, call: Call, seconds: float) -> Any:
    own = connection.socket_timeout
    limit = {} if own is not None and own <= seconds else {"timeout": seconds}
    connection.send_command(*call.by_digest)
    try:
        answer = connection.read_response(disconnect_on_error=False, **limit)
    except NoScriptError:
        connection.send_command(*call.in_full)
        answer = connection.read_response(disconnect_on_error=False, **limit)
    if call.replicas and granted(answer):
        connection.send_command("WAIT", call.replicas, round(seconds * 1000 / 2))
        acknowledged = connection.read_response(disconnect_on_error=False, **limit)
        if acknowledged < call.replicas:
            raise TooFewReplicas(acknowledged, call.replicas)
    return answer


def granted(answer: Any) -> bool:
    """Whether a script has granted or extended the lock: 1, alone or in front, says so."""
    return bool((answer[0] if isinstance(answer, list) else answer) == 1)


class TooFewReplicas(redis.RedisError):
    """What was written is not on as many replicas as it has to be."""

    def __init__(self, acknowledged: int, wanted: int) -> None:
        super().__init__(f"{acknowledged} of {wanted} replicas have it")


def connect(pool: ConnectionPool, seconds: float) -> Any:
    """Open a connection to the server of a pool, outside of the pool and without its retries.

    Args:
        seconds: for connecting, and for the first answer of the greeting: a server that hangs keeps us once.

    Raises:
        redis.exceptions.RedisError: no connection in that time.
    """
    limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": Retry(NoBackoff(), 0)}
    connection = pool.connection_class(**{"driver_info": driver()} | pool.connection_kwargs | limits)
    connection.connect()
    return connection


@cache
def driver() -> DriverInfo:
    """Return what redis-py says of itself to a server, and would read from a file for each connection of a URL's."""
    return DriverInfo()


class PinnedConnection:
    """A connection of our own to the server of a pool, outside of the pool and without its retries.

    An application that has used up its pool must not lose its locks for that, and what is sent here must come to an
    end in a given time whatever the server does, connecting included.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: Any = None

    def run(self, calls: Sequence[Call], seconds: float) -> list[Any]:
        """Run scripts in one round trip.

        Args:
            calls: what to run.
            seconds: how long this may take in all.

        Returns:
            The answers in the order of `calls`; an exception where the server answered with an error, or where too few
            replicas have what was written.

        Raises:
            redis.exceptions.RedisError: no connection, or not all answers in time.
        """
        until = time.monotonic() + seconds
        try:
            if self._connection is not None and self._connection.pid != os.getpid():
                self.close()  # after a fork: it is the parent's, who goes on using it
            if self._connection is None:
                self._connection = connect(self._pool, max(seconds / 4, SHORTEST))
            answers = self._exchange([call.by_digest for call in calls], until)
            unknown = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            again = self._exchange([calls[index].in_full for index in unknown], until)
            for index, answer in zip(unknown, again, strict=True):
                answers[index] = answer
            wanted = [call.replicas if granted(answer) else 0 for call, answer in zip(calls, answers, strict=True)]
            if replicas := max(wanted):
                acknowledged = self._wait(replicas, until)
                for index in range(len(calls)):
                    if wanted[index] > acknowledged:
                        answers[index] = TooFewReplicas(acknowledged, wanted[index])
        except BaseException:
            self.close()
            raise
        return answers

    def close(self) -> None:
        """Close the connection. The next use opens one again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _wait(self, replicas: int, until: float) -> int:
        """Return how many replicas have what was written. Those that want none must not suffer when nobody can say."""
        milliseconds = round(max(until - time.monotonic(), SHORTEST) * 1000 / 2)
        try:
            (acknowledged,) = self._exchange([("WAIT", replicas, milliseconds)], until)
        except redis.RedisError as error:
            self.close()
            acknowledged = error
        if isinstance(acknowledged, Exception):
            logger.warning("It is not known how many replicas have a renewal (%s).", acknowledged)
            return 0
        return int(acknowledged)

    def _exchange(self, commands: Sequence[Command], until: float) -> list[Any]:
        if not commands:
            return []
        connection = self._connection
        connection.send_packed_command(connection.pack_commands(commands))
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(connection.read_response(timeout=max(until - time.monotonic(), SHORTEST)))
            except redis.ResponseError as error:
                answers.append(error)
        return answers
