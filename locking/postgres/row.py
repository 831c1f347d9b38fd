"""RowLock: a lock on a row of the table `lock_row`, held by an open transaction."""

from __future__ import annotations

import math
from typing import cast

from locking.lock import Capabilities
from locking.postgres.errors import QUERY_CANCELED, StatementRefused
from locking.postgres.session import PostgresSession
from locking.postgres.session_lock import SessionGrant, SessionLock
from locking.postgres.settings import server_milliseconds
from locking.postgres.tables import NoSuchLock, ask_table

BEGIN = "BEGIN; SET LOCAL statement_timeout = {limit}"
"""Begin a transaction with a limit for the whole wait. `lock_timeout` would restart for each lock that the statement
waits for."""

LOCK_ROW = """
WITH held AS (SELECT fence FROM lock_row WHERE name = $1 FOR UPDATE{nowait})
SELECT
    greatest(fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    set_config('statement_timeout', '0', true)
FROM held
"""
"""Lock the row, return the fence, and remove the time limit that `BEGIN` has set. The statement waits for the row in
the subquery `held`, so the fence is computed after the grant."""

NOTE_FENCE = "UPDATE lock_row SET fence = $2::bigint WHERE name = $1"


class RowLock(SessionLock):
    """A row lock (`SELECT … FOR UPDATE`), held by an open transaction. The table `lock_row` has one row per name.

    The row must exist: create it with `add_row`. Without the row, `acquire` raises NoSuchLock.

    The fence is the greater of the server's time in microseconds and the last released fence + 1. A release stores its
    fence in the row; a holder that dies does not. The fence therefore grows as long as the server's clock is not set
    back. If the clock is set back and a holder dies, the next holder may get the same fence or a smaller one, until the
    clock has caught up.

    Hold the lock briefly: an open transaction keeps VACUUM from removing rows that were deleted since it began. A
    newcomer may overtake waiters.

    `SessionLock` describes the arguments, other errors, and what ends the lease.

    Source: https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-ROWS
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        fenced=True,
        quiet_wait=True,
        forks=True,
        survives_holder_crash=True,
    )

    def _take(self, session: PostgresSession, left: float) -> SessionGrant | None:
        deadline = self._clock() + left
        session.ask(BEGIN.format(limit=server_milliseconds(left) if 0 < left < math.inf else 0))
        lock_row = LOCK_ROW.format(nowait="" if left > 0 else " NOWAIT")
        try:
            row = ask_table(session, self.name, lock_row, self.name, waits=left)
        except StatementRefused as refused:
            if refused.sqlstate == QUERY_CANCELED and self._clock() >= deadline:
                return None
            raise
        if not row:
            raise NoSuchLock(
                f"The table lock_row has no row {self.name!r}, so there is nothing to lock. Create it once: "
                f"locking.postgres.add_row(conninfo, {self.name!r})"
            )
        return SessionGrant(int(cast(str, row[0])))

    def _free(self, session: PostgresSession, fence: int | None) -> bool:
        session.ask(NOTE_FENCE, self.name, str(fence))
        session.ask("COMMIT")
        return True
