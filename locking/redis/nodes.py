"""RedlockNode: one server of a Redlock, with its connections.

Connections are opened in threads, because name resolution, TLS and the handshake block and redis-py offers no other
way. An open connection needs no thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import redis

from locking.redis.connection import SHORTEST_TIMEOUT, Command, ScriptCall
from locking.redis.own_connections import OwnConnections, open_connection

if TYPE_CHECKING:
    from redis import ConnectionPool

OPENINGS = 8
"""Maximum number of connections to a node that are opened at the same time. More threads would only slow each other
down."""


class RedlockNode(OwnConnections):
    """One server: the connections to it of all Redlocks that share a client's pool, and whether it answered last time.

    Args:
        pool: supplies the address and the settings. The node holds only a weak reference to it.

    Attributes:
        silent: True once the node could not be reached or did not answer in time, until it answers again.
    """

    def _reset(self) -> None:
        super()._reset()
        self.silent = False
        self._opening: Future[None] | None = None
        self._opening_slots = threading.BoundedSemaphore(OPENINGS)

    def open(self, seconds: float) -> Future[None]:
        """Start to open one more connection, which `take_idle` then finds. A silent node has one attempt at a time.

        Args:
            seconds: time limit for each step of connecting.

        Returns:
            A future that ends when the connection is open, with the error if it could not be opened.

        Raises:
            RuntimeError: no thread could be started.
        """
        if self.silent and self._opening is not None and not self._opening.done():
            return self._opening
        opening = self._opening = Future()
        arguments = (opening, seconds, self.silent)
        try:
            threading.Thread(target=self._open, args=arguments, name="redlock-open", daemon=True).start()
        except BaseException:
            self._opening = None  # no thread will complete this attempt: later calls must not wait for it
            raise
        return opening

    def _open(self, opening: Future[None], seconds: float, probe: bool) -> None:  # noqa: FBT001 - target of a thread
        try:
            self.put(self._connect(seconds, probe))
        except Exception as error:
            self.silent = True
            opening.set_exception(error)
        else:
            self.silent = False
            opening.set_result(None)

    def _connect(self, seconds: float, probe: bool) -> Any:  # noqa: FBT001 - see `_open`
        """Return a new connection, once fewer than `OPENINGS` others are being opened.

        Args:
            seconds: time limit for each step of connecting.
            probe: whether to try even if the node is silent.

        Raises:
            redis.exceptions.RedisError: no connection in time.
        """
        with self._opening_slots:
            if self.silent and not probe:
                raise redis.TimeoutError("the node did not answer earlier attempts in time")
            return open_connection(self.pool, seconds)

    def abandon(self, connection: Any, calls: Sequence[ScriptCall]) -> None:
        """Send calls behind the unanswered request, and close the connection without waiting for answers.

        A server that is merely slow still receives everything that was sent, and runs it in this order.
        """
        self.silent = True
        try:
            if calls:
                with suppress(redis.RedisError):
                    send(connection, [call.in_full for call in calls])
        finally:
            connection.disconnect()

    def run_late(self, calls: Sequence[ScriptCall], seconds: float, opening: Future[None]) -> None:
        """Run calls that undo a vote, once a connection to the node is open.

        Args:
            calls: what to run.
            seconds: time limit for the answers, and for each step of connecting if another thread took the connection.
            opening: a finished attempt to connect. Nothing is run if it failed.
        """
        if opening.exception() is not None:
            return
        connection = self.take_idle()
        try:
            if connection is None:
                # Keep the new connection out of the idle list: no other request may overtake these calls.
                connection = self._connect(seconds, probe=True)
            send(connection, [call.in_full for call in calls])
            read(connection, len(calls), time.monotonic() + seconds)
        except redis.RedisError:
            if connection is not None:
                connection.disconnect()
        else:
            self.put(connection)


_nodes: WeakKeyDictionary[ConnectionPool, RedlockNode] = WeakKeyDictionary()


def node_of(pool: ConnectionPool) -> RedlockNode:
    """Return the node of a client's pool: one object for all Redlocks with this pool, which thus share connections."""
    return _nodes.setdefault(pool, RedlockNode(pool))


def send(connection: Any, commands: Sequence[Command]) -> None:
    """Send commands without waiting for any answer, not even to redis-py's health check."""
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)


def read(connection: Any, count: int, until: float) -> list[Any]:
    """Read `count` answers until a time on the monotonic clock. An error among them is returned as an exception.

    Raises:
        redis.exceptions.RedisError: not all answers came in time. The connection stays open.
    """
    answers: list[Any] = []
    for _ in range(count):
        limit = max(until - time.monotonic(), SHORTEST_TIMEOUT)
        try:
            answers.append(connection.read_response(timeout=limit, disconnect_on_error=False))
        except redis.ResponseError as error:
            answers.append(error)
    return answers
