"""Connections of redis-py, Django and `PostgresSession` that stop an actor's thread before each command.

In threads that run no actor, they work as usual.
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
from locking.postgres.session import PostgresSession
from locking.postgres.settings import SETTINGS

FOREVER: Any = object()
"""Stands for a timeout that the caller has not given: wait without a limit."""


class _Stopping:
    """A connection to Redis that stops the actor before each command. The commands of its handshake are not steps."""

    client_id = 0
    """The id of this connection on the server."""
    _handshake = False
    _blocking = False

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        self._handshake = True
        super().on_connect_check_health(check_health)  # type: ignore[misc]
        super().send_command("CLIENT", "ID")  # type: ignore[misc]
        self.client_id = super().read_response()  # type: ignore[misc]
        self._handshake, self._blocking = False, False

    def send_command(self, *command: Any, **options: Any) -> None:
        if command[0] == "UNWATCH":
            # redis-py sends UNWATCH to clean up, in any thread, even when a pipeline is garbage collected. So it is not
            # a step.
            if (actor := current_actor()) is not None and actor.crashed:
                raise redis.ConnectionError("the process has crashed")
        elif not self._handshake:
            stop_before(of_commands([command]))
            self._blocking = command[0] == "BLPOP"
            if self._blocking:
                # To learn whether this BLPOP has arrived, the sandbox asks the server for the last command of the
                # connection. An earlier BLPOP would look the same. So send PING in between.
                super().send_command("PING")  # type: ignore[misc]
                super().read_response()  # type: ignore[misc]
        super().send_command(*command, **options)  # type: ignore[misc]

    def read_response(self, *args: Any, timeout: Any = FOREVER, **options: Any) -> Any:
        if self._blocking and (actor := current_actor()) is not None:
            if not actor.listen(self, math.inf if timeout is FOREVER else actor.clock() + timeout):
                raise redis.TimeoutError("the timeout has passed on the schedule's clock")
            self._blocking = False
        limit = {} if timeout is FOREVER else {"timeout": timeout}
        return super().read_response(*args, **limit, **options)  # type: ignore[misc]

    def pack_commands(self, commands: Any) -> Any:
        commands = list(commands)
        if not self._handshake:
            stop_before(of_commands(commands))
        return super().pack_commands(commands)  # type: ignore[misc]


class StoppingConnection(_Stopping, Connection):
    """A TCP connection to Redis that stops the actor before each command."""


class StoppingSocket(_Stopping, UnixDomainSocketConnection):
    """A Unix socket connection to Redis that stops the actor before each command."""


class StoppingDatabase(DatabaseWrapper):
    """Django's connection to Postgres. It stops the actor before each statement, BEGIN, COMMIT and ROLLBACK."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute_wrappers.append(_before_the_statement)

    def _commit(self) -> None:
        stop_before(PendingStep("COMMIT", "postgres", writes=frozenset({"postgres"})))
        super()._commit()  # type: ignore[misc]

    def _rollback(self) -> None:
        if (actor := current_actor()) is not None and actor.crashed:
            # Because of this error, Django drops the connection, as the death of a process does.
            raise OperationalError("the process has crashed")
        stop_before(PendingStep("ROLLBACK", "postgres", writes=frozenset({"postgres"})))
        super()._rollback()  # type: ignore[misc]

    def _set_autocommit(self, autocommit: bool) -> None:  # noqa: FBT001 - Django's own
        if (actor := current_actor()) is not None and actor.crashed:
            raise OperationalError("the process has crashed")
        if not autocommit:
            stop_before(PendingStep("BEGIN", "postgres"))
        super()._set_autocommit(autocommit)  # type: ignore[misc]


def _before_the_statement(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
    stop_before(of_statement(sql))
    return execute(sql, *rest)


class Notification(ABC):
    """A source of events, other than a connection to Redis, for which an actor can wait."""

    @abstractmethod
    def arrived(self) -> bool:
        """Ask the server whether the actor should wake. Called in another thread."""


class StoppingSession(Notification, PostgresSession):
    """The Postgres session of a lock.

    It stops the actor before each statement, except the statement that sets the session's settings.
    """

    pid = 0
    """Process id of the session's Postgres backend."""
    _notified_before = False

    def __init__(self, *args: Any, **options: Any) -> None:
        if (actor := current_actor()) is not None:
            actor.check_alive()
        super().__init__(*args, **options)

    def ask(self, statement: str, *values: str, waits: float = 0.0) -> list[str | None]:
        actor = current_actor()
        if actor is None:
            return super().ask(statement, *values, waits=waits)
        if not self.pid:
            self.pid = self._pgconn.backend_pid
        if statement == SETTINGS:
            return super().ask(statement, *values)
        actor.session = self
        actor.stop(of_statement(statement))
        try:
            return super().ask(statement, *values, waits=waits)
        except LockUnavailable:
            actor.check_alive()
            raise

    def sleep(self, seconds: float) -> bool:
        actor = current_actor()
        if actor is None:
            return super().sleep(seconds)
        if actor.listen(self, actor.clock() + seconds):
            self._notified_before = False
            return True
        return False

    def arrived(self) -> bool:
        """Ask the server whether a notification has arrived."""
        # Postgres delivers notifications before it answers the next statement, so send a statement.
        super().ask("SELECT")
        self._notified_before = self._notified() or self._notified_before
        return self._notified_before
