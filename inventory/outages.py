"""Servers that are away: what tells it, and a log that has one line when that begins and one when it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import redis
from django.db import InterfaceError, OperationalError

logger = logging.getLogger(__name__)


def is_away(error: Exception) -> bool:
    """Return whether a server did not answer at all. An answer that it cannot do something is another error."""
    if isinstance(error, (OperationalError, InterfaceError)):
        state = getattr(error.__cause__, "sqlstate", None)
        # Class 57P: the server is ended, or has just been started. Class 08: a pooler says that it cannot reach it.
        return state is None or state.startswith(("57P", "08"))
    return isinstance(error, (redis.ConnectionError, redis.TimeoutError))


class Breaker:
    """A circuit breaker: while a server does not answer, one caller of a process at a time asks it.

    Each caller that asks a server that hangs waits until it gives up, and keeps its thread.

    Args:
        longest: seconds after which others may ask if that caller has not come back.
        retry: seconds between the end of one attempt and the next.
        clock: returns the time in seconds.
    """

    def __init__(self, longest: float, *, retry: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.retry = retry
        self._longest = longest
        self._clock = clock
        # Re-entrant: a finalizer may release a lock, which asks Redis, wherever the interpreter runs it.
        self._mutex = threading.RLock()
        self._ask_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the server is away, and nobody is to ask it now."""
        ask_at = self._ask_at
        return ask_at is not None and self._clock() < ask_at

    def begin(self) -> None:
        """Note that the server does not answer."""
        with self._mutex:
            self._ask_at = self._clock() + self.retry

    def end(self) -> None:
        """Note that the server answers."""
        if self._ask_at is not None:
            with self._mutex:
                self._ask_at = None

    def end_turn(self) -> None:
        """Let another caller ask after `retry`, also when this one found that it need not ask."""
        if self._ask_at is not None:
            with self._mutex:
                if self._ask_at is not None:
                    self._ask_at = min(self._ask_at, self._clock() + self.retry)

    def is_another_callers(self) -> bool:
        """Return whether the server is away and the caller need not ask it again now. If not, it is their turn."""
        if self._ask_at is None:
            return False
        with self._mutex:
            now = self._clock()
            if self._ask_at is None or now >= self._ask_at:
                self._ask_at = now + self._longest
                return False
            return True


class Outages:
    """The work that fails now, in one process. Work is tried again every few seconds; not every try is worth a line."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._failing: dict[str, tuple[float, int]] = {}

    def failed(self, work: str, error: Exception) -> None:
        """Log that work fails, unless its previous attempt failed too. Further failures are only counted."""
        with self._mutex:
            since, count = self._failing.get(work, (time.monotonic(), 0))
            self._failing[work] = (since, count + 1)
        if not count:
            logger.error("%s fails, and is tried again. Further failures are counted. %r", work, error)

    def worked(self, work: str) -> None:
        """Log that some work is done again, with the number of failures before, if there were any."""
        if not self._failing:
            return
        with self._mutex:
            since, count = self._failing.pop(work, (0.0, 0))
        if count:
            logger.warning("%s works again, after %d failures in %.0f s.", work, count, time.monotonic() - since)


ANSWERING = "Answering requests with Postgres"
"""The work of the API that fails while Postgres is away. It works again once an offer is read, or a health check finds
Postgres."""

outages = Outages()
"""Those of this process."""
