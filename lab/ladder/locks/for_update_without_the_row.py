"""Flawed lock: it locks a row in Postgres without checking that the row exists."""

from __future__ import annotations

from dataclasses import replace

from lab.ladder.locks.rung import Rung
from locking.postgres import RowLock
from locking.postgres.session import PostgresSession
from locking.postgres.session_lock import SessionGrant

LOCK_ROW = "SELECT FROM lock_row WHERE name = $1 FOR UPDATE"


class ForUpdateWithoutTheRow(Rung, RowLock):
    """Flawed: a SELECT … FOR UPDATE that finds no row locks nothing, and Postgres reports no error.

    If the row exists, the lock works. The row is missing on the day when a new product is sold. The schedule that
    breaks it: there is no row with this name. Client A's statement finds nothing and returns at once, and so does B's.
    Both are in the critical section. No statement waits for another, so nothing is slow, and nothing is in the log.

    Fixed by counting the rows, and by an error that says what to do if there is none: `lock-table-for-update`. To
    insert the row and try again would also work. Source: article 002, section 3.2.1.
    """

    slug = "for-update-without-the-row"
    title = "FOR UPDATE without the row"
    flaw = "If no row has this name, nothing is locked, and every client enters."
    breaks = "one holder"
    fixed_by = "lock-table-for-update"
    source = "002"
    capabilities = replace(RowLock.capabilities, fenced=False)

    def _take(self, session: PostgresSession, left: float) -> SessionGrant | None:
        session.ask("BEGIN")
        session.ask(LOCK_ROW if left > 0 else f"{LOCK_ROW} NOWAIT", self.name, waits=left)
        return SessionGrant(None)

    def _free(self, session: PostgresSession, fence: int | None) -> bool:
        session.ask("COMMIT")
        return True
