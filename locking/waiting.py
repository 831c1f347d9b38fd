"""How a waiter of a Redis lock sleeps: in a blocked pop on a connection of its own, with a timer of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import redis

from locking.errors import LockUnavailable
from locking.wire import NO_ANSWER

if TYPE_CHECKING:
    from redis import Redis

LONGEST_WAIT = 1e6
"""Seconds at a time: both ends count milliseconds in an integer of limited size."""

GRACE = 1.0
"""Seconds that the server keeps a pop blocked beyond the waiter's deadline, and that it has to end it when asked to."""


class Waiter:
    """One wait for one lock, as a context manager.

    The pop stays blocked when the timer ends, so that waiting on costs no command. Leaving ends it for certain before
    anything else happens: a forgotten pop would swallow a wake that is meant for somebody alive.

    Args:
        client: whose pool the connection comes from.
        lock: the name of the lock, for messages.
        bell: the list that wakes this waiter only.
        wake: the list that wakes any waiter.
        leave: tells the server that this waiter leaves; it is given whether the pop may still be blocked, and rings
            the bell if so.
    """

    def __init__(self, client: Redis, lock: str, bell: str, wake: str, leave: Callable[[bool], None]) -> None:
        self._pool = client.connection_pool
        self._lock = lock
        self._lists = (bell, wake)  # in this order: see leave.lua
        self._leave = leave
        self._connection: Any = None
        self._blocked = False
        self.granted = False
        """Whether the lock was granted in the meantime: then the server has struck us off its list already."""

    @property
    def idle_connection(self) -> Any:
        """Our connection while nothing is blocked on it, otherwise None."""
        return None if self._blocked else self._connection

    def wait(self, seconds: float, left: float) -> bool:
        """Sleep until woken.

        Args:
            seconds: for how long at most.
            left: seconds until the waiter gives up; `math.inf`: never.

        Returns:
            Whether there was a wake.

        Raises:
            LockUnavailable: the server cannot be reached, or the connection was cut.
            redis.exceptions.ResponseError: the server refuses to block.
        """
        try:
            if self._connection is None:
                self._connection = self._pool.get_connection()
            if not self._blocked:
                self._blocked = True
                self._connection.send_command("BLPOP", *self._lists, left + GRACE if left < LONGEST_WAIT else 0)
            try:
                # With a time limit of its own: the client's socket_timeout is for servers that owe an answer.
                self._connection.read_response(timeout=min(seconds, LONGEST_WAIT), disconnect_on_error=False)
            except redis.TimeoutError:
                return False
            self._blocked = False
            return True
        except NO_ANSWER as error:
            raise LockUnavailable(
                f"The wait for lock {self._lock!r} was cut ({error}). Try again; if that does not help, see whether "
                "the server runs, and whether the client's max_connections allow for two a waiting thread."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            # Without a server there is nobody to tell; it stops counting us when our time is over.
            if not isinstance(error, LockUnavailable) and (self._blocked or not self.granted):
                with suppress(LockUnavailable, redis.RedisError):
                    self._leave(self._blocked)
                    if self._blocked:
                        self._connection.read_response(timeout=GRACE)
                        self._blocked = False
        finally:
            if self._connection is not None:
                if self._blocked:
                    self._connection.disconnect()
                self._pool.release(self._connection)
