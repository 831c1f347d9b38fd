"""SharedSessions: the sessions of one lock in this process. Its waiting threads share one session and pass it on.

With a session per waiting thread, one process could use up the server's `max_connections`, and the server would refuse
other clients although it is idle.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from locking.errors import LockUnavailable
from locking.local import QueuePlace, has_queue
from locking.postgres.session import PostgresSession

_spare: dict[PostgresSession, Hashable] = {}
"""Idle sessions that hold no lock, each with the queue whose threads may use it. If a queue has no threads, its
sessions are closed."""

_failed: dict[Hashable, float] = {}
"""For each queue, the time (`time.monotonic`) when a thread last found that the server does not answer."""

os.register_at_fork(after_in_child=_spare.clear)


class SharedSessions:
    """The sessions of one lock in this process.

    One thread at a time waits at the server. The others queue behind it in the process, in order of arrival, each
    within its own timeout. A session that is given back goes to the next waiting thread, which then needs no new
    connection. Without waiting threads, the session is closed.

    Args:
        queue: identifies the lock in this process. Lock objects with the same queue share their sessions.
        conninfo: libpq's connection parameters.
        lock: name of the lock.
    """

    def __init__(self, queue: Hashable, conninfo: dict[str, Any], lock: str) -> None:
        self._queue = queue
        self._conninfo = conninfo
        self._lock = lock

    @contextmanager
    def turn(self, seconds: float) -> Iterator[bool]:
        """Queue in this process until it is this thread's turn to wait at the server. The turn ends with the block.

        Args:
            seconds: how long to wait for the turn.

        Yields:
            Whether the turn came in time.

        Raises:
            LockUnavailable: while this thread queued, another thread has found that the server does not answer.
        """
        joined = time.monotonic()
        try:
            with QueuePlace(self._queue) as place:
                first = place.wait_for_turn(joined + seconds)
                # Fail now: otherwise each thread in turn would wait for a server that does not answer.
                if first and _failed.get(self._queue, 0.0) > joined:
                    raise LockUnavailable(f"Postgres does not answer, as another thread has found: lock {self._lock!r}")
                try:
                    yield first
                except LockUnavailable as error:
                    if isinstance(error.__cause__, TimeoutError):
                        _failed[self._queue] = time.monotonic()
                    raise
        finally:
            self._close_unwanted()

    @contextmanager
    def use(self, wait_seconds: float = 0.0, idle_timeout: float = math.inf) -> Iterator[PostgresSession]:
        """Yield a session and give it back; after an error, close it. The arguments are those of `PostgresSession`.

        Raises:
            LockUnavailable: the server could not be reached, or is a standby.
        """
        session = self.take(wait_seconds, idle_timeout)
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self.give_back(session)

    def take(self, wait_seconds: float = 0.0, idle_timeout: float = math.inf) -> PostgresSession:
        """Return a spare session, or a new session. The arguments are those of `PostgresSession`.

        Raises:
            LockUnavailable: the server could not be reached, or is a standby.
        """
        for session, queue in list(_spare.items()):
            if queue == self._queue and _spare.pop(session, None) is not None:
                try:
                    if not session.ended:
                        session.set_limits(wait_seconds, idle_timeout)
                        return session
                except LockUnavailable:
                    pass  # The session has ended. If the server is gone, opening a new session raises.
                except BaseException:
                    session.close()
                    raise
                session.close()
        return PostgresSession(self._conninfo, self._lock, wait_seconds, idle_timeout=idle_timeout)

    def give_back(self, session: PostgresSession) -> None:
        """Let the next thread use a session that holds no lock, or close it if no thread waits."""
        _spare[session] = self._queue
        # Store the session first, and then check whether threads wait. The last thread may have left the queue just
        # before the session was stored.
        self._close_unwanted()

    def _close_unwanted(self) -> None:
        if has_queue(self._queue):
            return
        _failed.pop(self._queue, None)
        for session, queue in list(_spare.items()):
            if queue == self._queue and _spare.pop(session, None) is not None:
                session.close()
