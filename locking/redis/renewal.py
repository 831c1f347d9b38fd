"""RedisRenewer: extends the leases of all `RedisLock`s whose clients share a connection pool or a cluster client."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import redis
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError

from locking.lease import Lease
from locking.redis.connection import (
    SHORTEST_TIMEOUT,
    Command,
    NoNode,
    ScriptCall,
    TooFewReplicas,
    granted,
    pool_of,
)
from locking.redis.lease import RedisLease
from locking.redis.own_connections import open_connection

if TYPE_CHECKING:
    from redis import ConnectionPool
    from redis.cluster import RedisCluster

    from locking.redis.connection import Client

logger = logging.getLogger(__name__)


class RedisRenewer:
    """Extends the leases of this process's locks whose clients share a connection pool, or that share a cluster client.

    It uses connections of its own. Implements `locking.renewal.Renewer`.

    Args:
        client: client of one of these locks.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connections: dict[ConnectionPool, RenewalConnection] = {}

    @property
    def _servers(self) -> object:
        """What locks with the same renewer share: the connection pool of their clients, or the cluster client."""
        return getattr(self._client, "connection_pool", self._client)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RedisRenewer) and other._servers is self._servers

    def __hash__(self) -> int:
        return hash((RedisRenewer, id(self._servers)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease by its TTL, in one round trip per server. See `locking.renewal.Renewer.renew`."""
        until = time.monotonic() + seconds
        by_pool: dict[ConnectionPool, list[Lease]] = {}
        answers: dict[str, bool | None] = {}
        for lease in leases:
            try:
                pool = pool_of(self._client, _extension(lease).keys[0])
            except NoNode as error:
                logger.warning("A lease was not renewed (%r); the watchdog tries again.", str(error))
                answers[lease.token] = None
            else:
                by_pool.setdefault(pool, []).append(lease)
        for pool, on_server in by_pool.items():
            for lease, answer in zip(on_server, self._renew(pool, on_server, until - time.monotonic()), strict=True):
                answers[lease.token] = answer
        return [answers[lease.token] for lease in leases]

    def close(self) -> None:
        """Close the connections. The renewer may be used again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _renew(self, pool: ConnectionPool, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        connection = self._connections.setdefault(pool, RenewalConnection(pool))
        try:
            answers = connection.run([_extension(lease) for lease in leases], seconds)
        except redis.RedisError as error:
            logger.warning("%d leases were not renewed (%r); the watchdog tries again.", len(leases), str(error))
            return [None] * len(leases)
        for answer in answers:
            if isinstance(answer, MovedError):
                cast("RedisCluster", self._client).nodes_manager.move_slot(answer)
            if isinstance(answer, Exception):
                logger.warning("A lease was not renewed (%r); the watchdog tries again.", str(answer))
        return [None if isinstance(answer, Exception) else bool(answer) for answer in answers]


def _extension(lease: Lease) -> ScriptCall:
    return cast(RedisLease, lease).extend_call(lease.ttl)


class RenewalConnection:
    """A connection for renewals to the server of a pool, outside of the pool and without its retries.

    Every batch of calls ends within its time limit, which includes connecting.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: Any = None

    def run(self, calls: Sequence[ScriptCall], seconds: float) -> list[Any]:
        """Run scripts in one round trip, plus one for scripts that the server has lost, and one to wait for replicas.

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
        if any(isinstance(answer, ReadOnlyError) for answer in answers):
            # The server is no longer a primary, so connect again: a Sentinel client finds the new primary.
            self.close()
        return answers

    def close(self) -> None:
        """Close the connection. The next use opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _wait(self, replicas: int, until: float) -> int:
        """Return how many replicas have received the renewals just sent.

        The result is 0 if the number is unknown. Then leases without `wait_for_replicas` are still renewed.
        """
        timeout = round(max(until - time.monotonic(), SHORTEST_TIMEOUT) * 1000 / 2)
        try:
            (acknowledged,) = self._exchange([("WAIT", str(replicas), str(timeout))], until)
        except redis.RedisError as error:
            self.close()
            acknowledged = error
        if isinstance(acknowledged, Exception):
            logger.warning("The number of replicas that have received a renewal is unknown (%r).", str(acknowledged))
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
