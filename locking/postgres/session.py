"""PostgresSession: a connection that belongs to one grant, one wait or one request at a time.

The connection is never one of the application's pool: waiters could use up the connections that the holder needs to
finish. Set `max_connections` high enough for one connection per holder, and one for each lock that a process waits for.
Opening a connection takes a few milliseconds.

Statements go through libpq's own calls (`psycopg.pq`), because psycopg's `execute` has no time limit, and wakes up ten
times a second while it waits.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PollingStatus, TransactionStatus

from locking.errors import LockUnavailable
from locking.postgres.errors import SessionEnded, end_reason_in, refused
from locking.postgres.settings import (
    APPLICATION_NAME_BYTES,
    CONNECTION_PARAMETERS,
    LONGEST_WAIT,
    SETTINGS,
    server_milliseconds,
)

if TYPE_CHECKING:
    from psycopg.pq import abc
    from psycopg.pq.abc import PGresult

ANSWER_SECONDS = 10.0
"""Seconds that the server has to answer. The `timeout` of a caller limits only the wait for the lock."""

SHORTEST_WAIT = 0.001
"""Shortest time limit for a waiter, in seconds. A limit of 0 would mean a statement that does not wait."""


class PostgresSession:
    """A connection in autocommit mode, as a context manager that closes it.

    Args:
        conninfo: libpq's connection parameters.
        lock: name of the lock, for messages and for `application_name`.
        wait_seconds: for how many seconds a statement may wait for a lock; 0 if it does not wait.
        idle_timeout: seconds without a statement after which the server ends the session; `math.inf` for never.
        answer_timeout: seconds that the server has to accept the connection, and to answer each statement.

    Attributes:
        answer_timeout: seconds that the server has to answer each statement; may be changed.
        statement_lock: serializes the statements of threads that share the session.

    Raises:
        LockUnavailable: the server could not be reached, or is a standby.
    """

    def __init__(
        self,
        conninfo: dict[str, Any],
        lock: str,
        wait_seconds: float = 0.0,
        *,
        idle_timeout: float = math.inf,
        answer_timeout: float = ANSWER_SECONDS,
    ) -> None:
        self._lock = lock
        self.answer_timeout = answer_timeout
        self.statement_lock = threading.RLock()
        self._mutex = threading.RLock()
        self._closed = False
        until = time.monotonic() + wait_seconds
        label = f"lock {lock}".encode("ascii", "backslashreplace")[:APPLICATION_NAME_BYTES].decode()
        wanted = {**CONNECTION_PARAMETERS, **conninfo, "application_name": label, "client_encoding": "UTF8"}
        self._pgconn = PGconn.connect_start(make_conninfo("", **wanted).encode())
        # Collect the reasons that the server gives when it ends an idle session. The handler must not refer to this
        # PostgresSession. Otherwise the two would form a reference cycle, and a session that the program drops would
        # not close its connection.
        self._end_reasons = end_reasons = list[tuple[str, str]]()
        self._pgconn.notice_handler = lambda result: end_reasons.extend(end_reason_in(result))
        _open.add(self)
        try:
            self._connect()
            left = max(until - time.monotonic(), SHORTEST_WAIT) if wait_seconds > 0 else 0.0
            self.set_limits(left, idle_timeout)
        except (psycopg.Error, TimeoutError) as error:
            self.close()
            raise LockUnavailable(
                f"Postgres cannot be reached for lock {lock!r} ({str(error).strip()}). Try again. If that does not "
                "help, check that the server is running, and that its max_connections allows one connection per "
                "holder, and one for each lock that a process waits for."
            ) from error
        except BaseException:
            self.close()
            raise

    def set_limits(self, wait_seconds: float, idle_timeout: float) -> None:
        """Set the time limits of a session that is new, or that another thread takes over.

        Args:
            wait_seconds: for how many seconds a statement may wait for a lock; 0 if it does not wait.
            idle_timeout: seconds without a statement after which the server ends the session; `math.inf` for never.

        Raises:
            LockUnavailable: the server did not answer, or is a standby.
        """
        # A statement that must not wait for the lock may still have to wait for a statement of another client.
        lock_timeout = wait_seconds if wait_seconds > 0 else self.answer_timeout
        idle = str(server_milliseconds(idle_timeout)) if idle_timeout < math.inf else "0"
        row = self.ask(SETTINGS, str(server_milliseconds(lock_timeout)), idle)
        if row[-1] == "t":
            raise LockUnavailable(
                f"The server of lock {self._lock!r} is a standby, whose locks exclude no client of the primary. Name "
                "the primary in conninfo, or several hosts with target_session_attrs=primary."
            )

    def ask(self, statement: str, *values: str, waits: float = 0.0) -> list[str | None]:
        """Run a statement and return its first row, or an empty list if it returns none.

        Args:
            statement: the SQL text. Several statements are allowed if there are no `values`.
            values: the parameters `$1`, `$2`, … as text.
            waits: seconds that the statement may wait for a lock, on top of `answer_timeout`.

        Raises:
            StatementRefused: the server answered with an error.
            SessionEnded: the server ended the session and gave a reason. The statement may have taken effect.
            LockUnavailable: the server did not answer. The session is closed, which frees all its locks.
        """
        try:
            if values:
                self._pgconn.send_query_params(statement.encode(), [value.encode() for value in values])
            else:
                self._pgconn.send_query(statement.encode())
            results = self._results(waits + self.answer_timeout)
        except (psycopg.Error, TimeoutError) as error:
            raise self._failed("Postgres did not answer for", error) from error
        except BaseException:
            self._abandon()
            raise
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise refused(self._lock, result)
        last = results[-1]
        if not last.ntuples:
            return []
        row = [last.get_value(0, column) for column in range(last.nfields)]
        return [None if value is None else bytes(value).decode() for value in row]

    def sleep(self, seconds: float) -> bool:
        """Wait for a notification, and return whether one arrived within `seconds`.

        Raises:
            SessionEnded: the server ended the session and gave a reason.
            LockUnavailable: the connection was cut.
        """
        deadline = time.monotonic() + seconds
        try:
            while not self._notified():
                _wait(self._pgconn.socket, deadline)
                self._pgconn.consume_input()
        except TimeoutError:
            return False
        except psycopg.Error as error:
            raise self._failed("The connection was cut during the wait for", error) from error
        return True

    @property
    def ended(self) -> bool:
        """Whether the connection has ended. Looks at the socket and sends nothing.

        A server sends nothing to an idle session. If there is anything to read, the session has ended. If a network
        drops packets silently, only the TCP keepalives notice it.
        """
        with self._mutex:  # without it, another thread could close the socket, and a new file could get its number
            self._closed = self._closed or bool(_ready(self._pgconn.socket, 0.0))
            return self._closed

    def close(self) -> None:
        """Close the connection. The server frees its locks a moment later."""
        with self._mutex:
            self._closed = True
            self._pgconn.finish()
        # Do this last. A child that is forked earlier may inherit a locked mutex. It then finds the session in `_open`,
        # and `disown` replaces the mutex.
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def disown(self) -> None:
        """Drop the parent's connection in a forked child.

        A regular close would tell the server to end the parent's session. If the child kept the socket open, the lock
        would not become free when the parent dies. The socket is replaced by /dev/null, so that its number is not
        reused.
        """
        # A thread of the parent may have held the old mutexes, which would stay locked in the child.
        self.statement_lock, self._mutex = threading.RLock(), threading.RLock()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._pgconn.socket, inheritable=False)
        os.close(null)

    def _connect(self) -> None:
        self._poll_until_connected(self._pgconn, self._pgconn.connect_poll)
        self._pgconn.nonblocking = 1

    def _abandon(self) -> None:
        """Cancel the running statement, so that the server no longer waits for the lock, and close the session."""
        with suppress(psycopg.Error, TimeoutError):
            if self._pgconn.transaction_status == TransactionStatus.ACTIVE:
                cancel = self._pgconn.cancel_conn()
                cancel.start()
                self._poll_until_connected(cancel, cancel.poll)
                self._results(self.answer_timeout)
        self.close()

    def _poll_until_connected(self, connection: abc.PGconn | abc.PGcancelConn, poll: Callable[[], int]) -> None:
        """Drive libpq's connection state machine until the connection is open."""
        deadline = time.monotonic() + self.answer_timeout
        state = PollingStatus.WRITING
        while state != PollingStatus.OK:
            if state == PollingStatus.FAILED or connection.status == ConnStatus.BAD:
                raise psycopg.OperationalError(connection.get_error_message())
            events = select.POLLIN if state == PollingStatus.READING else select.POLLOUT
            _wait(connection.socket, deadline, events)
            state = PollingStatus(poll())

    def _failed(self, what: str, error: Exception) -> LockUnavailable:
        """Close the session. Return the exception to raise, with the server's reason if there is one."""
        self.close()
        advice = "Try again. If that does not help, check that the server is running."
        if self._end_reasons:
            state, message = self._end_reasons[-1]
            return SessionEnded(
                f"Postgres ended the session for lock {self._lock!r} ({state}: {message}). {advice}", state
            )
        return LockUnavailable(f"{what} lock {self._lock!r} ({str(error).strip()}). {advice}")

    def _results(self, seconds: float) -> list[PGresult]:
        """Return the results of the statement, or raise TimeoutError if they do not arrive within `seconds`."""
        deadline = time.monotonic() + seconds
        while self._pgconn.flush():
            _wait(self._pgconn.socket, deadline, select.POLLIN | select.POLLOUT)
            self._pgconn.consume_input()
        results: list[PGresult] = []
        while True:
            while self._pgconn.is_busy():
                _wait(self._pgconn.socket, deadline)
                try:
                    self._pgconn.consume_input()
                except psycopg.OperationalError:
                    # If the server gave a reason for the end of the session, the last result contains it.
                    if not self._pgconn.is_busy() and (last := self._pgconn.get_result()) is not None:
                        self._end_reasons += end_reason_in(last)
                    raise
            result = self._pgconn.get_result()
            if result is None:
                return results
            self._end_reasons += end_reason_in(result)
            if self._end_reasons:
                raise psycopg.OperationalError("the server ended the session")
            results.append(result)

    def _notified(self) -> bool:
        """Consume the notifications that have arrived, and return whether there was any."""
        notified = False
        while self._pgconn.notifies() is not None:
            notified = True
        return notified


def _wait(socket: int, deadline: float, events: int = select.POLLIN) -> None:
    if not _ready(socket, min(deadline - time.monotonic(), LONGEST_WAIT), events):
        raise TimeoutError("no answer in time")


def _ready(socket: int, seconds: float, events: int = select.POLLIN) -> list[tuple[int, int]]:
    poll = select.poll()
    poll.register(socket, events)
    return poll.poll(max(0.0, seconds) * 1000)


_open: weakref.WeakSet[PostgresSession] = weakref.WeakSet()
"""The open sessions of this process, which a forked child disowns."""


def _disown_all() -> None:
    for session in _open:
        with suppress(OSError, psycopg.Error):  # the session had no socket yet
            session.disown()
    _open.clear()


os.register_at_fork(after_in_child=_disown_all)
