"""Waiter: a client that waits for a Redis lock, asleep in a blocked pop (BLPOP) on a connection of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import redis

from locking.arguments import LONGEST_SECONDS
from locking.errors import LockUnavailable
from locking.redis.connection import NO_ANSWER
from locking.redis.own_connections import open_connection, own_connections

if TYPE_CHECKING:
    from redis import ConnectionPool

GRACE = 1.0
"""Seconds that the server lets a pop block beyond the waiter's deadline. Also the time limit for ending a pop."""


class Waiter:
    """One wait for one lock, as a context manager.

    When `wait` returns after its time limit, the pop stays blocked on the server. The next `wait` then sends no
    command. A waiter always ends its pop before it leaves: an abandoned pop would take a grant meant for another
    waiter.

    Args:
        pool: pool of the client. Its connections are not used, see `OwnConnections`.
        lock: name of the lock, for messages.
        bell: key of the list that wakes only this waiter.
        wake: key of the list from which a waiter pops a grant.
        leave: tells the server that this waiter leaves. Its argument says whether the pop may still be blocked. If so,
            the server pushes to `bell`, which ends the pop.
        strike: tells the server after an error that this waiter leaves. It takes at most a second, because the server
            may be gone.
        give_up: gives back a grant that arrived too late to be used.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        lock: str,
        bell: str,
        wake: str,
        leave: Callable[[bool], None],
        strike: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._lock = lock
        self._lists = (bell, wake)
        self._leave = leave
        self._strike = strike
        self._give_up = give_up
        self._connection: Any = None
        self.listed = False
        """Whether the server may have this waiter in its list of waiters."""
        self.blocked = False
        """Whether a BLPOP was sent on the connection and its answer was not read yet."""
        self.grant: str | None = None
        """The grant that was popped. On exit, it is given back if it did not lead to a lease."""
        self.granted = False
        """Whether this waiter got the lock. The server then removes it from the list of waiters by itself."""

    @property
    def idle_connection(self) -> Any:
        """The connection, or None while a pop is blocked on it."""
        return None if self.blocked else self._connection

    def wait(self, seconds: float, left: float) -> str | None:
        """Sleep until the lock is handed over.

        Args:
            seconds: longest time to sleep.
            left: seconds until the waiter gives up; `math.inf` for never.

        Returns:
            The grant that was popped, or None.

        Raises:
            LockUnavailable: the server could not be reached, the connection was cut, or the server ended the wait
                because it became a replica or gave the key to another node.
        """
        try:
            if self._connection is None:
                self._connection = own_connections(self._pool).take_idle() or open_connection(self._pool)
            if not self.blocked:
                self.blocked = True
                limit = str(left + GRACE) if left < LONGEST_SECONDS else "0"
                self._connection.send_command("BLPOP", *self._lists, limit)
            try:
                # The server need not answer before the hand-over, so the client's socket_timeout does not apply.
                return self._popped(min(seconds, LONGEST_SECONDS))
            except redis.TimeoutError:
                return None
        except redis.ResponseError as error:
            self.blocked = False
            self._withdraw()
            raise LockUnavailable(f"The Redis server ended the wait for lock {self._lock!r}: {error}") from error
        except NO_ANSWER as error:
            self._withdraw()
            raise LockUnavailable(
                f"The wait for lock {self._lock!r} was cut ({error}). Try again. If that does not help, check that the "
                "server is running, and that its maxclients allows for all its clients."
            ) from error

    def _withdraw(self) -> None:
        """Stop waiting after an error: close the connection to end the pop, and let the server remove this waiter."""
        self.listed = False
        if self._connection is not None:
            self._connection.disconnect()
        self._connection, self.blocked = None, False
        self._strike()

    def leave(self) -> str | None:
        """Stop waiting. Return a grant that was popped at the last moment, or None."""
        self.listed = False
        # If this request does not reach the server, the waiter counts as dead there after at most two of its TTLs.
        with suppress(LockUnavailable, redis.RedisError):
            self._leave(self.blocked)
            return self._popped(GRACE) if self.blocked else None
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if not isinstance(error, LockUnavailable) and self.listed and (self.blocked or not self.granted):
                self.leave()
            if self.grant is not None and not self.granted:
                self._give_up(self.grant)
        finally:
            if self._connection is not None:
                if self.blocked:
                    self._connection.disconnect()
                else:
                    own_connections(self._pool).put(self._connection)

    def _popped(self, seconds: float) -> str | None:
        answer = self._connection.read_response(timeout=seconds, disconnect_on_error=False)
        self.blocked = False
        if answer is None:  # the server's own timer ended the pop
            return None
        at, popped = (part if isinstance(part, str) else part.decode() for part in answer)
        if at == self._lists[1]:
            self.grant = popped
            return popped
        return None
