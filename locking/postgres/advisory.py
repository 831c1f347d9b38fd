"""AdvisoryLock: a lock held by a session of Postgres, without a table."""

from __future__ import annotations

from locking.lock import Capabilities
from locking.postgres.names import advisory_key
from locking.postgres.session import PostgresSession
from locking.postgres.session_lock import SessionGrant, SessionLock


class AdvisoryLock(SessionLock):
    """A session-level advisory lock. It needs no table, and the server serves waiters in order of arrival.

    Processes get the lock in the order in which they began to wait. Threads of one process take turns in order of
    arrival, so a thread may get the lock after a later thread of another process.

    The server identifies advisory locks by 64-bit numbers, so the lock is on a hash of the name. Names with the same
    hash exclude each other; the probability that a million names contain such a pair is 3 in 100 million. This is safe,
    but a holder of one lock of the pair cannot get the other one. An application that takes an advisory lock on the
    same number also excludes the holders of this lock.

    Acquire several locks in the same order everywhere. Two holders that wait for each other's lock would wait for ever,
    or until their `timeout`. The server does not detect this deadlock, because each grant has a session of its own.

    `SessionLock` describes the arguments, the errors, and what ends the lease.

    Source: https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        fair=True,
        quiet_wait=True,
        forks=True,
        survives_holder_crash=True,
    )

    def _take(self, session: PostgresSession, left: float) -> SessionGrant | None:
        if left > 0:
            session.ask("SELECT pg_advisory_lock($1)", self._key, waits=left)
            return SessionGrant(None)
        return SessionGrant(None) if session.ask("SELECT pg_try_advisory_lock($1)", self._key) == ["t"] else None

    def _free(self, session: PostgresSession, fence: int | None) -> bool:
        return session.ask("SELECT pg_advisory_unlock($1)", self._key) == ["t"]

    @property
    def _key(self) -> str:
        return str(advisory_key(self.name))
