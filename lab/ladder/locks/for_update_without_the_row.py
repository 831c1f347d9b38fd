"""`for-update-without-the-row`: the row of the lock is locked, and nobody asks whether there is one."""

from __future__ import annotations

from dataclasses import replace

from lab.ladder.locks.rung import Rung
from locking.postgres import RowLock
from locking.postgres.session import PostgresSession
from locking.postgres.session_lock import SessionGrant

LOCK_ROW = "SELECT FROM lock_row WHERE name = $1 FOR UPDATE"


class ForUpdateWithoutTheRow(Rung, RowLock):
    """Flawed: a statement that finds no row locks none, and it is no error.

    With the row it is a lock; the row is missing on the day when somebody sells a product that nobody had thought of.
    The schedule: there is no row of that name; A's statement finds nothing and returns at once, so does B's, and both
    are inside. Not even two statements wait for each other, so nothing is slow, and nothing is in the log.
    Fixed by counting the rows: none is an error that says what to do, `lock-table-for-update`. To insert the row and
    try again would do as well. Source: article 002, section 3.2.1.
    """

    slug = "for-update-without-the-row"
    title = "FOR UPDATE, and no row"
    flaw = "Without a row of that name nothing is locked, and everybody enters."
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
