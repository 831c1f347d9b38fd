"""Run the scripts of the Redis locks, each within a time limit.

redis-py's `execute_command` is not used because it may repeat a command silently. A lock must know when a request was
left without an answer: the grant or the release may still take effect.
"""

from __future__ import annotations

import logging
import math
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
"""redis-py's errors for no connection and no answer."""

SHORTEST_TIMEOUT = 0.001
"""Seconds. A timeout of 0 would make a socket non-blocking."""

SCRIPTS = Path(__file__).with_name("scripts")


@cache
def script(name: str) -> tuple[str, str]:
    """Return the text of `scripts/<name>.lua`, and its SHA-1 digest for EVALSHA."""
    text = (SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds, rounded up."""
    return math.ceil(seconds * 1000)


class NoNode(LockUnavailable, redis.ConnectionError):
    """The cluster has no known node for a key.

    It is a `LockUnavailable` for the caller of a lock, and a connection error for the code that handles those.
    """


def pool_of(client: Client, key: str) -> ConnectionPool:
    """Return the connection pool of the server that has `key`: a cluster client has one pool for each node.

    Raises:
        NoNode: the client knows no node for the key.
    """
    if isinstance(client, RedisCluster):
        try:
            node = cast(Any, client).get_node_from_key(key)
            return client.get_redis_connection(node).connection_pool
        except RedisClusterException as error:  # not a RedisError
            raise NoNode(f"No node of the Redis cluster serves the key {key!r} ({error}). Try again.") from error
    return client.connection_pool


class ScriptCall(NamedTuple):
    """One run of a Lua script.

    Attributes:
        script: name of the file in `scripts`, without `.lua`.
        keys: KEYS of the script.
        args: ARGV of the script.
        replicas: number of replicas that must have the writes of the script before a grant counts.
    """

    script: str
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    replicas: int = 0

    @property
    def by_digest(self) -> Command:
        """EVALSHA command, for a server that has the script cached."""
        return ("EVALSHA", script(self.script)[1], len(self.keys), *self.keys, *self.args)

    @property
    def in_full(self) -> Command:
        """EVAL command, for any server; the server then caches the script."""
        return ("EVAL", script(self.script)[0], len(self.keys), *self.keys, *self.args)


def run_script(
    client: Client,
    lock: str,
    call: ScriptCall,
    *,
    seconds: float,
    on: Any = None,
    undo: Callable[[], Sequence[ScriptCall]] | None = None,
) -> Any:
    """Run a script once and return its answer.

    If the server no longer has the script cached (SCRIPT FLUSH, restart), the full text is sent. If a cluster node has
    given the key to another node, it has done nothing, so the other node is asked. Connecting follows the client's own
    timeouts and retries, and does not count towards the time limit.

    Args:
        client: client whose connection pool is used.
        lock: name of the lock, for messages.
        call: what to run.
        seconds: time limit for the answer. The client's `socket_timeout` applies if it is shorter.
        on: an idle connection that the caller has already taken from the pool.
        undo: returns calls that undo the request. They are sent if the request fails or is not answered, on the same
            connection, so that a slow server runs them after the request. If that connection is broken, a new one is
            tried.

    Raises:
        LockUnavailable: no connection, no answer, an error as the answer, or too few replicas.
    """
    try:
        try:
            return _run_script(pool_of(client, call.keys[0]), call, seconds, on, undo)
        except MovedError as moved:
            cast("RedisCluster", client).nodes_manager.move_slot(moved)
            return _run_script(pool_of(client, call.keys[0]), call, seconds, None, undo)
    except NO_ANSWER as error:
        if isinstance(client, RedisCluster):  # find the node that took over from a dead one, for the next request
            with suppress(redis.RedisError, RedisClusterException):
                client.nodes_manager.initialize()
        raise LockUnavailable(
            f"The Redis server did not answer for lock {lock!r} ({error}). Try again. If that does not help, check "
            "that the server is running, and that max_connections and socket_timeout of the client are large enough."
        ) from error
    except redis.RedisError as error:
        raise LockUnavailable(f"The Redis server refused a request for lock {lock!r}: {error}") from error


def _run_script(
    pool: ConnectionPool, call: ScriptCall, seconds: float, on: Any, undo: Callable[[], Sequence[ScriptCall]] | None
) -> Any:
    connection: Any = pool.get_connection() if on is None else on
    try:
        return _run(connection, call, seconds)
    except MovedError:  # this node has done nothing
        raise
    except BaseException:
        try:
            if undo is not None:
                steps = connection.pack_commands([step.in_full for step in undo()])
                with suppress(redis.RedisError):
                    # Skip the client's health check, which would send a PING and wait for its answer.
                    connection.send_packed_command(steps, check_health=False)
        finally:
            # A late answer must not be read as the answer to the next request on this connection.
            connection.disconnect()
        raise
    finally:
        if on is None:
            pool.release(connection)


def _run(connection: Any, call: ScriptCall, seconds: float) -> Any:
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
    """Return whether a script has granted or extended the lock: its answer is 1, or a list that starts with 1."""
    return bool((answer[0] if isinstance(answer, list) else answer) == 1)


class TooFewReplicas(redis.RedisError):
    """Fewer replicas than required have received a write."""

    def __init__(self, acknowledged: int, wanted: int) -> None:
        super().__init__(f"{acknowledged} of {wanted} replicas have received the write")


def open_connection(pool: ConnectionPool, seconds: float) -> Any:
    """Open a connection to the server of a pool, outside of the pool and without its retries.

    Args:
        pool: supplies the address and the settings.
        seconds: time limit for connecting, and for each answer of the handshake.

    Raises:
        redis.exceptions.RedisError: no connection in time.
    """
    limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": Retry(NoBackoff(), 0)}
    connection = pool.connection_class(**{"driver_info": driver_info()} | pool.connection_kwargs | limits)
    connection.connect()
    return connection


@cache
def driver_info() -> DriverInfo:
    """Return redis-py's description of itself, cached because redis-py reads it from a file for each connection."""
    return DriverInfo()


class RenewalConnection:
    """A connection for renewals to the server of a pool, outside of the pool and without its retries.

    An application that has used up its pool must still renew its locks. Every batch ends within its time limit,
    connecting included.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: Any = None

    def run(self, calls: Sequence[ScriptCall], seconds: float) -> list[Any]:
        """Run scripts in one round trip.

        Args:
            calls: what to run.
            seconds: total time limit.

        Returns:
            The answers in the order of `calls`. An answer is an exception if the server answered with an error, or if
            too few replicas have received the write.

        Raises:
            redis.exceptions.RedisError: no connection, or not all answers in time.
        """
        until = time.monotonic() + seconds
        try:
            if self._connection is not None and self._connection.pid != os.getpid():
                self.close()  # after a fork the connection belongs to the parent
            if self._connection is None:
                self._connection = open_connection(self._pool, max(seconds / 4, SHORTEST_TIMEOUT))
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
        """Close the connection. The next use opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _wait(self, replicas: int, until: float) -> int:
        """Return how many replicas have received the writes; 0 if unknown, so that leases that need none go on."""
        timeout = round(max(until - time.monotonic(), SHORTEST_TIMEOUT) * 1000 / 2)
        try:
            (acknowledged,) = self._exchange([("WAIT", replicas, timeout)], until)
        except redis.RedisError as error:
            self.close()
            acknowledged = error
        if isinstance(acknowledged, Exception):
            logger.warning("The number of replicas that have received a renewal is unknown (%s).", acknowledged)
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
                answers.append(connection.read_response(timeout=max(until - time.monotonic(), SHORTEST_TIMEOUT)))
            except redis.ResponseError as error:
                answers.append(error)
        return answers
