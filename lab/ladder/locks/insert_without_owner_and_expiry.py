"""Flawed lock: INSERT acquires, DELETE releases. The row names neither an owner nor an expiry."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable

from lab.ladder.locks.rung import ON_A_SERVER, POLL, Rung
from locking.lease import Lease
from locking.lock import Lock, wait_timeout
from locking.postgres.session import PostgresSession
from locking.postgres.settings import parameters

INSERT = "INSERT INTO lock_grant VALUES ($1, 'somebody', 'infinity') ON CONFLICT DO NOTHING RETURNING name"
DELETE = "DELETE FROM lock_grant WHERE name = $1 RETURNING name"


class InsertWithoutOwnerAndExpiry(Rung, Lock):
    """Flawed: the inserted row stays in the table when the process that inserted it dies.

    The unique key lets exactly one client win. The lock is `setnx` in SQL, and it fails in the same way. The schedule
    that breaks it: client A inserts the row and dies before it deletes it. No client can ever enter again. A restart of
    the program or of the server does not help, and the row is not listed among the server's locks.

    The row does not say who inserted it. So an operator who deletes rows that look old may delete the lock of a slow
    client.

    Fixed by an owner and an expiry in the row, which the next client checks: `lock-table-insert`. Source: article 002,
    section 3.2.
    """

    slug = "insert-without-owner-and-expiry"
    title = "Unique insert, no owner, no expiry"
    flaw = "The row of a holder that crashed is never deleted."
    breaks = "progress"
    broken_by = "crash"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "lock-table-insert"
    source = "002"
    capabilities = ON_A_SERVER

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=math.inf, clock=clock)
        self._conninfo = parameters(conninfo)
        self._sleep = sleep

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`."""
        deadline = self._clock() + wait_timeout(blocking, timeout)
        while not self._ask(INSERT):
            left = deadline - self._clock()
            if left <= 0:
                return None
            self._sleep(min(POLL, left))
        return Lease(self, secrets.token_hex(16), started=self._clock(), ttl=math.inf, clock=self._clock)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return True

    def _release(self, lease: Lease) -> bool:
        return self._ask(DELETE)

    def _ask(self, statement: str) -> bool:
        with PostgresSession(self._conninfo, self.name) as session:
            return bool(session.ask(statement, self.name))
