"""Clients whose lock is in Postgres. The counter that they sell from is in Redis, as on the other rungs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lab.ladder.locks import insert_without_owner_and_expiry
from lab.ladder.locks.for_update_without_the_row import ForUpdateWithoutTheRow
from lab.ladder.locks.insert_without_owner_and_expiry import InsertWithoutOwnerAndExpiry
from lab.sandbox.hooks import StoppingSession
from lab.sandbox.stand_ins import StandIns
from lab.workloads.base import TTL
from lab.workloads.lock import LockTrial, sleep
from locking import Lock
from locking.postgres import advisory, tables
from locking.postgres.tables import InsertLock, create_lock_tables

NAME = "stock"
USERS: tuple[Any, ...] = (advisory, tables, insert_without_owner_and_expiry)
"""The modules that open sessions."""

IN_THE_MODULES = StandIns(*((module, "PostgresSession", StoppingSession) for module in USERS))


class PostgresTrial(LockTrial):
    """Each client has sessions of his own with Postgres, as his lock opens them, and stops before what he asks there.

    Whoever is no client gets sessions that stop for nobody.
    """

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        eyes = self.stage.eyes
        if eyes.execute("SELECT to_regclass('lock_fence')").fetchone() == (None,):
            create_lock_tables(self.stage.conninfo)
        eyes.execute("DELETE FROM lock_grant")
        eyes.execute("DELETE FROM lock_row")
        if self.entry.code is not ForUpdateWithoutTheRow:
            eyes.execute("INSERT INTO lock_row (name) VALUES (%s)", [NAME])
        self.stage.passes_elsewhere, self.stage.expires_elsewhere = self._passes, self._expires_in
        IN_THE_MODULES.enter(self)
        return super().prepare()

    def end(self) -> None:
        super().end()
        self.stage.passes_elsewhere = self.stage.expires_elsewhere = None
        IN_THE_MODULES.leave(self)

    def make_lock(self, client: Any) -> Lock:
        code: Any = self.entry.code
        options: dict[str, Any] = {"clock": self.stage.clock}
        if code is InsertWithoutOwnerAndExpiry:
            options["sleep"] = sleep
        elif code is InsertLock:
            options["ttl"] = TTL
        lock: Lock = code(self.stage.conninfo, NAME, **options)
        return lock

    def state(self) -> tuple[Mapping[str, Any], ...]:
        rows = self.stage.eyes.execute(
            "SELECT 'lock_grant: ' || name, 'somebody', extract(epoch FROM expires - clock_timestamp())::float8 "
            "FROM lock_grant UNION ALL SELECT 'lock_row: ' || name, 'the row', 'infinity' FROM lock_row ORDER BY 1"
        )
        shown = [
            {"where": "postgres", "name": name, "value": value, "ttl": None if left == float("inf") else left}
            for name, value, left in rows
        ]
        return (*super().state(), *shown)

    def _passes(self, seconds: float) -> None:
        """By the server's clock, which nobody can set, whatever expires does so that much earlier."""
        self.stage.eyes.execute(
            "UPDATE lock_grant SET expires = expires - %s * interval '1 second' WHERE expires < 'infinity'", [seconds]
        )

    def _expires_in(self) -> float | None:
        (left,) = self.stage.eyes.execute(
            "SELECT extract(epoch FROM min(expires) - clock_timestamp())::float8 "
            "FROM lock_grant WHERE clock_timestamp() < expires AND expires < 'infinity'"
        ).fetchone() or (None,)
        return left
