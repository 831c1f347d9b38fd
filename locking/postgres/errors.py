"""Errors of Postgres and their SQLSTATEs: the server refused a statement, or ended a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.pq import DiagnosticField

from locking.errors import LockUnavailable

if TYPE_CHECKING:
    from psycopg.pq import abc

LOCK_NOT_AVAILABLE = "55P03"
"""SQLSTATE of a wait that reached `lock_timeout`, and of a refused `NOWAIT`."""

QUERY_CANCELED = "57014"
"""SQLSTATE of a statement that reached `statement_timeout` or was cancelled."""

IDLE_SESSION_TIMEOUT = "57P05"
"""SQLSTATE with which the server ends a session that was idle for `idle_session_timeout`."""

UNDEFINED_TABLE = "42P01"
"""SQLSTATE of a statement whose table does not exist."""


class StatementRefused(LockUnavailable):
    """The server answered a statement with an error.

    Attributes:
        sqlstate: error code, see https://www.postgresql.org/docs/current/errcodes-appendix.html
    """

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class SessionEnded(LockUnavailable):
    """The server ended the session and gave a reason.

    Attributes:
        sqlstate: error code, as in `StatementRefused`.
    """

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def refused(lock: str, result: abc.PGresult) -> StatementRefused:
    """Return the exception for a result with which the server refused a statement."""
    state, message = _error_in(result)
    return StatementRefused(f"Postgres refused a statement for lock {lock!r} ({state}: {message}). Try again.", state)


def end_reason_in(result: abc.PGresult) -> list[tuple[str, str]]:
    """Return the SQLSTATE and message with which a result ends the session; an empty list if it does not end it."""
    # A pooler may omit the untranslated severity. Then use the translated severity.
    severity = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) or result.error_field(DiagnosticField.SEVERITY)
    return [_error_in(result)] if severity in {b"FATAL", b"PANIC"} else []


def _error_in(result: abc.PGresult) -> tuple[str, str]:
    """Return the SQLSTATE and the message of a result."""
    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    return state, (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
