"""Where an actor's thread is stopped: at the extension points of redis-py, of Django's backends and of our own session.

A thread that is no actor passes every hook as if it were not there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import redis
from django.db import OperationalError
from django.db.backends.postgresql.base import DatabaseWrapper
from redis.connection import Connection, UnixDomainSocketConnection

from lab.explorer.actor import current_actor, stop_before
from lab.explorer.terms import PendingStep
from lab.sandbox.steps import of_commands, of_statement
from locking.errors import LockUnavailable
from locking.postgres.session import SETTINGS, PostgresSession

FOREVER: Any = object()


class _Stops:
    """A connection to Redis that stops before it sends anything but its greeting."""

    _greets = False
    number = 0
    """What the server calls it."""
    _blocks = False

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        self._greets = True
        super().on_connect_check_health(check_health)  # type: ignore[misc]
        super().send_command("CLIENT", "ID")  # type: ignore[misc]
        self.number = super().read_response()  # type: ignore[misc]
        self._greets, self._blocks = False, False

    def send_command(self, *command: Any, **options: Any) -> None:
        if command[0] == "UNWATCH":
            # redis-py clears up with it, even when it collects a pipeline as garbage, in whichever thread that is.
            if (mine := current_actor()) is not None and mine.crashed:
                raise redis.ConnectionError("the process is dead")
        elif not self._greets:
            stop_before(of_commands([command]))
            self._blocks = command[0] == "BLPOP"
            if self._blocks:
                # So that the server's last command of this connection is a BLPOP only once it has seen this one.
                super().send_command("PING")  # type: ignore[misc]
                super().read_response()  # type: ignore[misc]
        super().send_command(*command, **options)  # type: ignore[misc]

    def read_response(self, *args: Any, timeout: Any = FOREVER, **options: Any) -> Any:
        if self._blocks and (mine := current_actor()) is not None:
            if not mine.listen(self, math.inf if timeout is FOREVER else mine.clock() + timeout):
                raise redis.TimeoutError("the schedule's time has passed")
            self._blocks = False
        limit = {} if timeout is FOREVER else {"timeout": timeout}
        return super().read_response(*args, **limit, **options)  # type: ignore[misc]

    def pack_commands(self, commands: Any) -> Any:
        commands = list(commands)
        if not self._greets:
            stop_before(of_commands(commands))
        return super().pack_commands(commands)  # type: ignore[misc]


class StoppingConnection(_Stops, Connection):
    """Over TCP."""


class StoppingSocket(_Stops, UnixDomainSocketConnection):
    """Over a Unix socket."""


class StoppingDatabase(DatabaseWrapper):
    """Django's connection to Postgres, which stops before each statement, and before BEGIN, COMMIT and ROLLBACK."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute_wrappers.append(_before_the_statement)

    def _commit(self) -> None:
        stop_before(PendingStep("COMMIT", "postgres", writes=frozenset({"postgres"})))
        super()._commit()  # type: ignore[misc]

    def _rollback(self) -> None:
        if (mine := current_actor()) is not None and mine.crashed:
            # Django then drops the connection, which is what becomes of a dead process's.
            raise OperationalError("the process is dead")
        stop_before(PendingStep("ROLLBACK", "postgres", writes=frozenset({"postgres"})))
        super()._rollback()  # type: ignore[misc]

    def _set_autocommit(self, autocommit: bool) -> None:  # noqa: FBT001 - Django's own
        if (mine := current_actor()) is not None and mine.crashed:
            raise OperationalError("the process is dead")
        if not autocommit:
            stop_before(PendingStep("BEGIN", "postgres"))
        super()._set_autocommit(autocommit)  # type: ignore[misc]


def _before_the_statement(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
    stop_before(of_statement(sql))
    return execute(sql, *rest)


class Bell(ABC):
    """What an actor listens to, if it is no connection to Redis."""

    @abstractmethod
    def rang(self) -> bool:
        """In another thread, while he sleeps: whether he is to wake, as the server sees it."""


class StoppingSession(Bell, PostgresSession):
    """A session of the locks with Postgres, which stops before each statement, but for those that settle how it is."""

    pid = 0
    """The process of the server that serves it."""
    _notes = False

    def __init__(self, *args: Any, **options: Any) -> None:
        if (mine := current_actor()) is not None:
            mine.goes_on_living()
        super().__init__(*args, **options)

    def ask(self, statement: str, *values: str, waits: float = 0.0) -> list[str | None]:
        mine = current_actor()
        if mine is None:
            return super().ask(statement, *values, waits=waits)
        if not self.pid:
            self.pid = self._pgconn.backend_pid
        if statement == SETTINGS:
            return super().ask(statement, *values)
        mine.session = self
        mine.stop(of_statement(statement))
        try:
            return super().ask(statement, *values, waits=waits)
        except LockUnavailable:
            mine.goes_on_living()
            raise

    def sleep(self, seconds: float) -> bool:
        mine = current_actor()
        if mine is None:
            return super().sleep(seconds)
        if mine.listen(self, mine.clock() + seconds):
            self._notes = False
            return True
        return False

    def rang(self) -> bool:
        """See `Bell.rang`.

        The server passes on what was committed before it answers the next question, so one is asked.
        """
        super().ask("SELECT")
        self._notes = self._notified() or self._notes
        return self._notes
