"""A connection to Postgres that belongs to one grant or one wait, and is closed with it.

Never one of the request's: whoever waits for a lock with a connection from a pool keeps from the pool what the holder
needs to get on. So allow in `max_connections` for one a holder and one a waiter; opening it takes some milliseconds.

It speaks through libpq's own calls (`psycopg.pq`), because psycopg's `execute` knows no time limit, and wakes ten times
a second while it waits.
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
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PGconn, PollingStatus, TransactionStatus

from locking.errors import LockUnavailable

if TYPE_CHECKING:
    from psycopg.pq import abc
    from psycopg.pq.abc import PGresult

ANSWER_SECONDS = 10.0
"""Seconds that a server has to answer, whatever the caller's timeout, which is for the lock."""

LONGEST_WAIT = 2_000_000.0
"""Seconds: both ends count milliseconds in 32 bits. A wait of more than 23 days ends after 23 days."""

APPLICATION_NAME_BYTES = 63

LOCK_NOT_AVAILABLE = "55P03"
"""The SQLSTATE of a wait that reached `lock_timeout`, and of `NOWAIT`."""

QUERY_CANCELED = "57014"
"""The SQLSTATE of a statement that reached `statement_timeout`, and of one that somebody has cancelled."""

IDLE_SESSION_TIMEOUT = "57P05"
"""The SQLSTATE with which the server ends a session that has asked nothing for as long as `idle`."""

# Our kernel notices a silent network after 15 seconds, the server's after 40: before it gives the lock to others. The
# user timeout also ends a vain try to connect, so that the next one of several hosts gets its turn.
CONNECTING = {
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "6000",
}

SETTINGS = """
SELECT set_config(name, value, false), pg_is_in_recovery()
FROM (VALUES
    ('default_transaction_isolation', 'read committed'),
    ('lock_timeout', $1),
    ('statement_timeout', '0'),
    ('transaction_timeout', '0'),
    ('idle_session_timeout', $2),
    ('idle_in_transaction_session_timeout', '0'),
    ('tcp_keepalives_idle', '20'),
    ('tcp_keepalives_interval', '10'),
    ('tcp_keepalives_count', '2'),
    ('tcp_user_timeout', '40000')
) AS wanted (name, value)
WHERE current_setting(name, true) IS NOT NULL
"""
"""No default of the server's may end a grant, or fail for who has waited: a stricter isolation would. Read-only stays
as it is: who has set a server so means it. Settings that an older server does not know are left out. Returns whether it
is a standby: libpq's own look may believe what a pooler remembers.

$1 `lock_timeout`, $2 `idle_session_timeout`, which Postgres knows from version 14 on.
"""


class StatementRefused(LockUnavailable):
    """The server answered with an error.

    Attributes:
        sqlstate: its code, of https://www.postgresql.org/docs/current/errcodes-appendix.html
    """

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Ended(LockUnavailable):
    """The server has ended the session, and said why.

    Attributes:
        sqlstate: its code, as in `Refused`.
    """

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class PostgresSession:
    """A connection of one's own, in autocommit, as a context manager that closes it.

    Args:
        conninfo: where to connect, as libpq's parameters.
        lock: the name of the lock, for messages and for `application_name`.
        left: for how many seconds a statement may wait for a lock; 0 for one that does not wait.
        idle: seconds after which the server ends the session when we ask nothing; `math.inf` for never.
        answers: seconds that the server has to let us in, and for each answer.

    Attributes:
        turn: held by whoever asks while others may, too.

    Raises:
        LockUnavailable: the server cannot be reached.
    """

    def __init__(
        self,
        conninfo: dict[str, Any],
        lock: str,
        left: float = 0.0,
        *,
        idle: float = math.inf,
        answers: float = ANSWER_SECONDS,
    ) -> None:
        self._lock = lock
        self.answers = answers
        self.turn = threading.RLock()
        self._mutex = threading.RLock()
        self._over = False
        until = time.monotonic() + left
        label = f"lock {lock}".encode("ascii", "backslashreplace")[:APPLICATION_NAME_BYTES].decode()
        wanted = {**CONNECTING, **conninfo, "application_name": label, "client_encoding": "UTF8"}
        self._pgconn = PGconn.connect_start(make_conninfo("", **wanted).encode())
        # What the server says to a session that has asked nothing. The handler must not refer to us, or our end would
        # not close the connection.
        self._farewell = farewell = list[tuple[str, str]]()
        self._pgconn.notice_handler = lambda result: farewell.extend(_farewell_in(result))
        _open.add(self)
        try:
            self._connect()
            # A statement that does not wait for the lock may still wait for another statement to end.
            patience = until - time.monotonic() if left > 0 else answers
            row = self.ask(SETTINGS, str(limit(patience)), str(limit(idle)) if idle < math.inf else "0")
            if row[-1] == "t":
                raise LockUnavailable(
                    f"The server asked for lock {lock!r} is a standby, whose locks exclude nobody elsewhere. Name the "
                    "primary, or several hosts with target_session_attrs=primary."
                )
        except (psycopg.Error, TimeoutError) as error:
            self.close()
            raise LockUnavailable(
                f"Postgres cannot be reached for lock {lock!r} ({str(error).strip()}). Try again; if that does not "
                "help, see whether the server runs, and whether its max_connections allow for one a holder and one a "
                "waiter."
            ) from error
        except BaseException:
            self.close()
            raise

    def ask(self, statement: str, *values: str, waits: float = 0.0) -> list[str | None]:
        """Run a statement and return its first row; an empty list when it has none.

        Args:
            statement: one with `$1`, `$2` … for the values, or several without.
            values: what stands for them.
            waits: for how many seconds it may wait for a lock, until `lock_timeout` ends it.

        Raises:
            Refused: the server answered with an error.
            Ended: the server has ended the session, and said why. It may have done what it was asked.
            LockUnavailable: no answer. The session is closed, and the server ends what it did.
        """
        try:
            if values:
                self._pgconn.send_query_params(statement.encode(), [value.encode() for value in values])
            else:
                self._pgconn.send_query(statement.encode())
            results = self._results(waits + self.answers)
        except (psycopg.Error, TimeoutError) as error:
            raise self._failed("Postgres did not answer for", error) from error
        except BaseException:
            self._abandon()
            raise
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise _refused(self._lock, result)
        last = results[-1]
        if not last.ntuples:
            return []
        row = [last.get_value(0, column) for column in range(last.nfields)]
        return [None if value is None else bytes(value).decode() for value in row]

    def sleep(self, seconds: float) -> bool:
        """Wait for a notification, and return whether one came within `seconds`.

        Raises:
            Ended: the server has ended the session, and said why.
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
            raise self._failed("The connection was cut that waits for", error) from error
        return True

    @property
    def ended(self) -> bool:
        """Whether the connection is over: a look at the socket, which asks nobody.

        A server says nothing to a session that asks nothing, so whatever there is to read says that it is over. What a
        network swallows silently is not seen before the keepalives are.
        """
        with self._mutex:  # so that nobody closes the socket while we look, and its number goes to another file
            self._over = self._over or bool(_ready(self._pgconn.socket, 0.0))
            return self._over

    def close(self) -> None:
        """Close the connection. The server ends what it held, some moments later."""
        with self._mutex:
            self._over = True
            self._pgconn.finish()
        _open.discard(self)  # last: a child that is forked meanwhile gets a mutex that nobody holds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def disown(self) -> None:
        """Let go of the parent's connection in a forked child.

        Closing it properly would tell the server to end the parent's session. Keeping it open would keep the lock from
        becoming free when the parent dies. The number of the socket stays taken, so that nothing else gets it.
        """
        self.turn, self._mutex = threading.RLock(), threading.RLock()  # a thread of the parent's may have held them
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._pgconn.socket, inheritable=False)
        os.close(null)

    def _connect(self) -> None:
        self._carry_on(self._pgconn, self._pgconn.connect_poll)
        self._pgconn.nonblocking = 1

    def _abandon(self) -> None:
        """End the running statement, so that the server does not go on waiting for us, and close."""
        with suppress(psycopg.Error, TimeoutError):
            if self._pgconn.transaction_status == TransactionStatus.ACTIVE:
                cancel = self._pgconn.cancel_conn()
                cancel.start()
                self._carry_on(cancel, cancel.poll)
                self._results(self.answers)
        self.close()

    def _carry_on(self, connection: abc.PGconn | abc.PGcancelConn, poll: Callable[[], int]) -> None:
        """Do what libpq asks for until it is connected."""
        deadline = time.monotonic() + self.answers
        state = PollingStatus.WRITING
        while state != PollingStatus.OK:
            if state == PollingStatus.FAILED or connection.status == ConnStatus.BAD:
                raise psycopg.OperationalError(connection.get_error_message())
            events = select.POLLIN if state == PollingStatus.READING else select.POLLOUT
            _wait(connection.socket, deadline, events)
            state = PollingStatus(poll())

    def _failed(self, what: str, error: Exception) -> LockUnavailable:
        """Close, and return what to raise: what the server has said, when it has said something."""
        self.close()
        advice = "Try again; if that does not help, see whether the server runs."
        if self._farewell:
            state, said = self._farewell[-1]
            return Ended(f"Postgres ended the session for lock {self._lock!r} ({state}: {said}). {advice}", state)
        return LockUnavailable(f"{what} lock {self._lock!r} ({str(error).strip()}). {advice}")

    def _results(self, seconds: float) -> list[PGresult]:
        """Return what the server answers within `seconds`; TimeoutError when it does not."""
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
                    # It may have said why before it hung up. Otherwise the result is libpq's, and says the same.
                    if not self._pgconn.is_busy() and (last := self._pgconn.get_result()) is not None:
                        self._farewell += _farewell_in(last)
                    raise
            result = self._pgconn.get_result()
            if result is None:
                return results
            self._farewell += _farewell_in(result)
            if self._farewell:
                raise psycopg.OperationalError("the server has ended the session")
            results.append(result)

    def _notified(self) -> bool:
        """Whether a notification is here, and forget all that are."""
        came = False
        while self._pgconn.notifies() is not None:
            came = True
        return came


def parameters(conninfo: str) -> dict[str, Any]:
    """Return the parameters of a connection string.

    Raises:
        ValueError: it is not one.
    """
    try:
        return dict(conninfo_to_dict(conninfo))
    except psycopg.ProgrammingError as error:
        raise ValueError(f"conninfo is not a connection string of libpq: {str(error).strip()}") from error


def limit(seconds: float) -> int:
    """Return a time limit as the server counts it, in milliseconds, where 0 would be none."""
    return max(1, math.ceil(min(seconds, LONGEST_WAIT) * 1000))


def _refused(lock: str, result: abc.PGresult) -> StatementRefused:
    state, said = _said(result)
    return StatementRefused(f"Postgres refused lock {lock!r} ({state}: {said}). Try again.", state)


def _farewell_in(result: abc.PGresult) -> list[tuple[str, str]]:
    """Return with which SQLSTATE and words the server ends the session; nothing if it does not."""
    # A pooler may leave out the severity that is not translated.
    severity = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) or result.error_field(DiagnosticField.SEVERITY)
    return [_said(result)] if severity in {b"FATAL", b"PANIC"} else []


def _said(result: abc.PGresult) -> tuple[str, str]:
    """Return the SQLSTATE of a result, and what it says."""
    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    return state, (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")


def _wait(socket: int, deadline: float, events: int = select.POLLIN) -> None:
    if not _ready(socket, min(deadline - time.monotonic(), LONGEST_WAIT), events):
        raise TimeoutError("no answer in time")


def _ready(socket: int, seconds: float, events: int = select.POLLIN) -> list[tuple[int, int]]:
    poll = select.poll()
    poll.register(socket, events)
    return poll.poll(max(0.0, seconds) * 1000)


_open: weakref.WeakSet[PostgresSession] = weakref.WeakSet()
"""The sessions of this process."""


def _disown_all() -> None:
    for session in _open:
        with suppress(OSError, psycopg.Error):  # one that had no socket yet
            session.disown()
    _open.clear()


os.register_at_fork(after_in_child=_disown_all)
