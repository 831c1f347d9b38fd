"""Outages of servers: recognise an outage, limit the requests during it, and log its beginning and end once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import redis
from django.db import InterfaceError, OperationalError

logger = logging.getLogger(__name__)


def is_away(error: Exception) -> bool:
    """Return whether an error means that the server cannot be reached. False if the server refused the request."""
    if isinstance(error, (OperationalError, InterfaceError)):
        state = getattr(error.__cause__, "sqlstate", None)
        # SQLSTATE 57P: Postgres is shutting down or starting up. 08: a pooler cannot reach Postgres.
        return state is None or state.startswith(("57P", "08"))
    return isinstance(error, (redis.ConnectionError, redis.TimeoutError))


class Breaker:
    """A circuit breaker: while a server does not answer, only one caller of the process at a time sends it a request.

    Without the breaker, every caller would block a thread until its request times out.

    Args:
        longest: seconds after which another caller may try, if the first caller has not finished its attempt.
        retry: seconds between the end of one attempt and the next.
        clock: returns the time in seconds.
    """

    def __init__(self, longest: float, *, retry: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.retry = retry
        self._longest = longest
        self._clock = clock
        # Re-entrant: garbage collection may run here and release a lock in Redis, which uses this breaker again.
        self._mutex = threading.RLock()
        self._ask_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the server is away, and callers must not send requests to it now."""
        ask_at = self._ask_at
        return ask_at is not None and self._clock() < ask_at

    def begin(self) -> None:
        """Record that the server does not answer."""
        with self._mutex:
            self._ask_at = self._clock() + self.retry

    def end(self) -> None:
        """Record that the server answers."""
        if self._ask_at is not None:
            with self._mutex:
                self._ask_at = None

    def end_turn(self) -> None:
        """End this caller's attempt, even if it sent no request. After `retry` seconds another caller may try."""
        if self._ask_at is not None:
            with self._mutex:
                if self._ask_at is not None:
                    self._ask_at = min(self._ask_at, self._clock() + self.retry)

    def is_another_callers(self) -> bool:
        """Return whether this caller must send no request, because it is another caller's turn.

        If False, this caller may try the server.
        """
        if self._ask_at is None:
            return False
        with self._mutex:
            now = self._clock()
            if self._ask_at is None or now >= self._ask_at:
                self._ask_at = now + self._longest
                return False
            return True


class Outages:
    """Logs failing work of this process: only the first of several failures in a row, and the success after them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._failing: dict[str, tuple[float, int]] = {}

    def failed(self, work: str, error: Exception) -> None:
        """Log the first failure of some work. Failures that follow it are only counted."""
        with self._mutex:
            since, count = self._failing.get(work, (time.monotonic(), 0))
            self._failing[work] = (since, count + 1)
        if not count:
            logger.error("%s fails, and is tried again. Further failures are counted. %r", work, error)

    def worked(self, work: str) -> None:
        """Log that some work succeeds again, and how often it failed before. Log nothing if it did not fail."""
        if not self._failing:
            return
        with self._mutex:
            since, count = self._failing.pop(work, (0.0, 0))
        if count:
            logger.warning("%s works again, after %d failures in %.0f s.", work, count, time.monotonic() - since)


ANSWERING = "Answering requests with Postgres"
"""Name, in `outages`, of the work that the API and the pages cannot do while Postgres is away.

The outage ends when a sale is read from Postgres, or when a health check finds that Postgres accepts writes.
"""

outages = Outages()
"""The outages that this process has noticed."""
