"""How a waiter of a Redis lock sleeps: in a blocked pop on a connection of its own, with a timer of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import redis

from locking.errors import LockUnavailable
from locking.redis.connection import NO_ANSWER

if TYPE_CHECKING:
    from redis import ConnectionPool

LONGEST_WAIT = 1e6
"""Seconds at a time: both ends count milliseconds in an integer of limited size."""

GRACE = 1.0
"""Seconds that the server keeps a pop blocked beyond the waiter's deadline, and that it has to end it when asked to."""


class Waiter:
    """One wait for one lock, as a context manager.

    The pop stays blocked when the timer ends, so that waiting on costs no command. Leaving ends it for certain before
    anything else happens: a forgotten pop would swallow a grant that is meant for somebody alive.

    Args:
        pool: where the connection comes from.
        lock: the name of the lock, for messages.
        bell: the list that wakes this waiter only.
        wake: the list from which whoever waits pops a grant.
        leave: tells the server that this waiter leaves; it is given whether the pop may still be blocked, and rings
            the bell if so.
        give_up: gives back a grant that came when nobody wanted it any more.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        lock: str,
        bell: str,
        wake: str,
        leave: Callable[[bool], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._lock = lock
        self._lists = (bell, wake)
        self._leave = leave
        self._give_up = give_up
        self._connection: Any = None
        self._blocked = False
        self._left = False
        self.grant: str | None = None
        """The grant that was popped. Unless the lock is held by it, leaving gives it back, whatever interrupts us."""
        self.granted = False
        """Whether the lock was granted in the meantime: then the server has struck us off its list, or soon will."""

    @property
    def idle_connection(self) -> Any:
        """Our connection while nothing is blocked on it, otherwise None."""
        return None if self._blocked else self._connection

    def wait(self, seconds: float, left: float) -> str | None:
        """Sleep until the lock is handed over.

        Args:
            seconds: for how long at most.
            left: seconds until the waiter gives up; `math.inf`: never.

        Returns:
            The grant that was popped, or None.

        Raises:
            LockUnavailable: the server cannot be reached, the connection was cut, or the server ended the wait: it has
                become a replica, or has handed the key to another node.
        """
        try:
            if self._connection is None:
                self._connection = self._pool.get_connection()
            if not self._blocked:
                self._blocked = True
                self._connection.send_command("BLPOP", *self._lists, left + GRACE if left < LONGEST_WAIT else 0)
            try:
                # With a time limit of its own: the client's socket_timeout is for servers that owe an answer.
                return self._popped(min(seconds, LONGEST_WAIT))
            except redis.TimeoutError:
                return None
        except redis.ResponseError as error:
            self._blocked = False
            raise LockUnavailable(f"The Redis server ended the wait for lock {self._lock!r}: {error}") from error
        except NO_ANSWER as error:
            raise LockUnavailable(
                f"The wait for lock {self._lock!r} was cut ({error}). Try again; if that does not help, see whether "
                "the server runs, and whether the client's max_connections allow for two a waiting thread."
            ) from error

    def leave(self) -> str | None:
        """Stop waiting, and return a grant that was popped in the last moment."""
        self._left = True
        # Without a server there is nobody to tell; it stops counting us when our time is over.
        with suppress(LockUnavailable, redis.RedisError):
            self._leave(self._blocked)
            return self._popped(GRACE) if self._blocked else None
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if not isinstance(error, LockUnavailable) and not self._left and (self._blocked or not self.granted):
                self.leave()
            if self.grant is not None and not self.granted:
                self._give_up(self.grant)
        finally:
            if self._connection is not None:
                if self._blocked:
                    self._connection.disconnect()
                self._pool.release(self._connection)

    def _popped(self, seconds: float) -> str | None:
        answer = self._connection.read_response(timeout=seconds, disconnect_on_error=False)
        self._blocked = False
        if answer is None:  # the server's own timer
            return None
        at, popped = (part if isinstance(part, str) else part.decode() for part in answer)
        if at == self._lists[1]:
            self.grant = popped
            return popped
        return None
