"""Run the scripts of the Redis locks, each within a time limit.

redis-py's `execute_command` is not used because it may repeat a command silently. A lock must know when a request was
left without an answer: the grant or the release may still take effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import redis
from redis.cluster import RedisCluster
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError, RedisClusterException

from locking.errors import LockUnavailable
from locking.redis.own_connections import open_connection, own_connections

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

    Client = Redis | RedisCluster

Command = tuple[str, ...]
"""A command and its arguments. Numbers are passed as text as well: with hiredis-py 3.5, a signal handler that raises
while hiredis packs a number can crash the process."""

NO_ANSWER = (redis.ConnectionError, redis.TimeoutError)
"""redis-py's errors for no connection and no answer."""

SHORTEST_TIMEOUT = 0.001
"""Shortest timeout of a socket, in seconds. A timeout of 0 would make the socket non-blocking."""

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
    """The client of a cluster knows no node for a key.

    It is a `LockUnavailable`, which callers of a lock expect, and a connection error, which internal code handles.
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
        return ("EVALSHA", script(self.script)[1], *self._keys_and_args)

    @property
    def in_full(self) -> Command:
        """EVAL command, for any server; the server then caches the script."""
        return ("EVAL", script(self.script)[0], *self._keys_and_args)

    @property
    def _keys_and_args(self) -> Command:
        return (str(len(self.keys)), *self.keys, *map(str, self.args))


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

    If the server no longer has the script cached (SCRIPT FLUSH, restart), the full text is sent. If a cluster node
    answers that another node has the key, the script did not run, so the other node is asked. Connecting follows the
    client's own timeouts and retries, and does not count towards the time limit.

    Args:
        client: supplies the server. Its pool is not used, see `OwnConnections`.
        lock: name of the lock, for messages.
        call: what to run.
        seconds: time limit for the answer. The client's `socket_timeout` applies if it is shorter.
        on: the connection to use, which the caller owns; None for an idle or a new connection.
        undo: returns calls that undo the request. They are sent if the request fails or is not answered. They use the
            same connection, so that a slow server runs them after the request. If that connection is broken, they are
            sent on a new connection.

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
        if isinstance(client, RedisCluster):
            # Read the slots again, so that the next request finds the successor of a dead node.
            with suppress(redis.RedisError, RedisClusterException):
                client.nodes_manager.initialize()
        raise LockUnavailable(
            f"The Redis server did not answer for lock {lock!r} ({error}). Try again. If that does not help, check "
            "that the server is running, and that the client's socket_timeout is long enough."
        ) from error
    except redis.RedisError as error:
        raise LockUnavailable(f"The Redis server refused a request for lock {lock!r}: {error}") from error


def _run_script(
    pool: ConnectionPool, call: ScriptCall, seconds: float, on: Any, undo: Callable[[], Sequence[ScriptCall]] | None
) -> Any:
    own = own_connections(pool)
    connection: Any = (own.take_idle() or open_connection(pool)) if on is None else on
    try:
        answer = _run(connection, call, seconds)
    except MovedError:  # this node did not run the script
        if on is None:
            own.put(connection)
        raise
    except BaseException as error:
        if isinstance(error, (*NO_ANSWER, ReadOnlyError)):  # the server is gone, or no longer a primary
            own.drop_idle()
        try:
            if undo is not None:
                steps = connection.pack_commands([step.in_full for step in undo()])
                with suppress(redis.RedisError):
                    # Skip the client's health check, which would send a PING and wait for its answer.
                    connection.send_packed_command(steps, check_health=False)
        finally:
            # Close the connection: a late answer must not be read as the answer to the next request on it.
            connection.disconnect()
        raise
    if on is None:
        own.put(connection)
    return answer


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
        connection.send_command("WAIT", str(call.replicas), str(round(seconds * 1000 / 2)))
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
