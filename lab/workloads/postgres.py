"""Clients whose lock is in Postgres. They sell from a counter in Redis, as the clients of the other locks do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from psycopg.conninfo import make_conninfo

from lab.explorer.actor import Actor, current_actor
from lab.explorer.terms import Job
from lab.ladder.locks import insert_without_owner_and_expiry
from lab.ladder.locks.for_update_without_the_row import ForUpdateWithoutTheRow
from lab.ladder.locks.insert_without_owner_and_expiry import InsertWithoutOwnerAndExpiry
from lab.sandbox.clock import TTL
from lab.sandbox.hooks import StoppingSession
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.stand_ins import StandIns
from lab.workloads.base import sleep
from lab.workloads.lock import LockWorkload
from locking import Lock
from locking.postgres import InsertLock, create_lock_tables, insert, shared_sessions, tables

NAME = "stock"
USERS: tuple[Any, ...] = (shared_sessions, insert, tables, insert_without_owner_and_expiry)
"""The modules that open Postgres sessions."""

IN_THE_MODULES = StandIns(*((module, "PostgresSession", StoppingSession) for module in USERS))


class PostgresWorkload(LockWorkload):
    """Clients of a lock that opens its Postgres sessions as in production. Each statement is a step."""

    def prepare(self) -> Mapping[str, Job]:
        observer = self.sandbox.observer
        if observer.execute("SELECT to_regclass('lock_fence')").fetchone() == (None,):
            create_lock_tables(self.sandbox.conninfo)
        observer.execute("DELETE FROM lock_grant")
        observer.execute("DELETE FROM lock_row")
        if self.entry.code is not ForUpdateWithoutTheRow:
            observer.execute("INSERT INTO lock_row (name) VALUES (%s)", [NAME])
        self.sandbox.leases = LockGrants(self.sandbox)
        IN_THE_MODULES.enter(self)
        return super().prepare()

    def clean_up(self) -> None:
        self.sandbox.leases = None
        IN_THE_MODULES.leave(self)

    def make_lock(self, client: Any) -> Lock:
        code: Any = self.entry.code
        options: dict[str, Any] = {"clock": self.sandbox.clock}
        if code is InsertWithoutOwnerAndExpiry:
            options["sleep"] = sleep
        elif code is InsertLock:
            options["ttl"] = TTL
        # Only threads of one process share sessions, by conninfo. Each client stands for a process, so give it a
        # conninfo of its own.
        name = cast("Actor", current_actor()).name
        lock: Lock = code(make_conninfo(self.sandbox.conninfo, fallback_application_name=name), NAME, **options)
        return lock

    def state(self) -> tuple[Mapping[str, Any], ...]:
        rows = self.sandbox.observer.execute(
            "SELECT 'lock_grant: ' || name, 'a holder', extract(epoch FROM expires - clock_timestamp())::float8 "
            "FROM lock_grant UNION ALL SELECT 'lock_row: ' || name, 'the row', 'infinity' FROM lock_row ORDER BY 1"
        )
        shown = [
            {"where": "postgres", "name": name, "value": value, "ttl": None if left == float("inf") else left}
            for name, value, left in rows
        ]
        return (*super().state(), *shown)


class LockGrants:
    """The grants of a lock table in Postgres. The server's clock cannot be set, so the expiry of a grant is moved."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def pass_time(self, seconds: float) -> None:
        """Let time pass: make every grant expire earlier."""
        self._sandbox.observer.execute(
            "UPDATE lock_grant SET expires = expires - %s * interval '1 second' WHERE expires < 'infinity'", [seconds]
        )

    def until_expiry(self) -> float | None:
        """Return the seconds until the first grant expires. None if none will expire."""
        (left,) = self._sandbox.observer.execute(
            "SELECT extract(epoch FROM min(expires) - clock_timestamp())::float8 "
            "FROM lock_grant WHERE clock_timestamp() < expires AND expires < 'infinity'"
        ).fetchone() or (None,)
        return left
