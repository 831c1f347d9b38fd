"""AdvisoryLock: a lock that a session of Postgres holds, and what every lock of that kind has in common.

The server keeps such a lock for as long as the connection lives: no TTL, no renewal, and it is free as soon as the
connection of a crashed holder has ended. The other side of it: when the connection ends, the lock is gone, whatever its
holder is doing. The lease looks at the connection's socket whenever it is asked, and the watchdog does for `on_lost`.

Use a connection straight to the server, or through a pooler that keeps sessions: one that hands out transactions
(PgBouncer's `pool_mode = transaction`) gives the lock to somebody else's session. It must lead to the primary: a
standby has locks of its own, which exclude nobody elsewhere, so it is refused.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.postgres.session import LOCK_NOT_AVAILABLE, PostgresSession, StatementRefused, parameters
from locking.renewal import watchdog


class Grant(NamedTuple):
    """The server has given the lock to a session.

    Attributes:
        fence: the fencing token of the grant, or None.
    """

    fence: int | None


class SessionLock(Lock):
    """A lock that belongs to a connection of its own, opened for each grant and closed with it.

    A lease is lost when its connection is: the backend was terminated, the server stopped. `lost`, `check()` and
    `remaining()` see it at once, `on_lost` is called within a fraction of a second. A network that swallows everything
    silently is noticed by the TCP keepalives after 11 to 16 seconds, well before the server's own give the lock away;
    until then, and while this machine is suspended, the lease is taken for held. `extend` has nothing to extend: it
    looks, too.

    A process that is stopped (SIGSTOP) keeps its connection, for its kernel answers the keepalives. So a stopped holder
    keeps the lock for as long as it is stopped, and so does a stopped waiter when its turn has come.

    A lease that nobody refers to any more closes its connection, and so frees the lock.

    Args:
        conninfo: where to connect, as for `psycopg.connect`. Its `application_name` is replaced by the lock's name.
        name: what is locked.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: the name is empty or not a text for Postgres, or `conninfo` cannot be read.
    """

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=math.inf)
        refuse_what_is_no_text(name)
        self._conninfo = parameters(conninfo)
        self._on_lost = on_lost
        self._clock = clock

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. A server that does not answer is waited for ten seconds, however short `timeout` is."""
        waits = wait_timeout(blocking, timeout)
        started = self._clock()
        lease = None
        session = PostgresSession(self._conninfo, self.name, waits)
        try:
            grant = self._take(session, max(0.0, started + waits - self._clock()))
            if grant is not None:
                lease = self._watched(session, grant.fence, started)
        except StatementRefused as refused:
            if refused.sqlstate != LOCK_NOT_AVAILABLE:
                raise
        finally:
            if lease is None:
                session.close()
        return lease

    @abstractmethod
    def _take(self, session: PostgresSession, left: float) -> Grant | None:
        """Ask for the lock and wait for `left` seconds, 0 for not at all. `lock_timeout` ends the wait on the server.

        Returns:
            The grant, or None when the lock was not granted. Refused with LOCK_NOT_AVAILABLE says the same.
        """

    @abstractmethod
    def _free(self, session: PostgresSession, fence: int | None) -> bool:
        """Give the lock back, and return whether the session had it, when it is free."""

    def _watched(self, session: PostgresSession, fence: int | None, started: float) -> Lease:
        lease = SessionLease(
            self,
            secrets.token_hex(16),
            started=started,
            ttl=math.inf,
            fence=fence,
            on_lost=self._on_lost,
            clock=self._clock,
            session=session,
        )
        if self._on_lost is not None:
            watchdog.watch(lease, None)
        return lease

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return not cast(SessionLease, lease).session.ended

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        session = cast(SessionLease, lease).session
        # Closed whatever happens: without its session the server frees the lock. Of two threads that release it one
        # asks, and the other then sees that it is over.
        with session.turn, session:
            return not session.ended and self._free(session, lease.fence)


class SessionLease(Lease):
    """A lease that lasts as long as a connection.

    Args:
        session: that connection.
    """

    __slots__ = ("session",)

    def __init__(self, *args: Any, session: PostgresSession, **options: Any) -> None:
        self.session = session
        super().__init__(*args, **options)

    def _ended(self) -> bool:
        return self.session.ended


class AdvisoryLock(SessionLock):
    """A session-level advisory lock: no table, no row, nothing to prepare. The server serves waiters in their order.

    The server knows 64-bit numbers, not names, and the lock is on a hash of the name. Two names may have the same one
    (any two of a million names with a chance of 3 in 100 million). Then they exclude each other, which is safe, but who
    holds one and waits for the other waits in vain. So do advisory locks that others take on that number.

    Two who wait for what the other one holds wait for ever, unless they have a `timeout`: each grant has a session of
    its own, so the server sees no deadlock. Take several locks in the same order everywhere.

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

    def _take(self, session: PostgresSession, left: float) -> Grant | None:
        if left > 0:
            session.ask("SELECT pg_advisory_lock($1)", self._key, waits=left)
            return Grant(None)
        return Grant(None) if session.ask("SELECT pg_try_advisory_lock($1)", self._key) == ["t"] else None

    def _free(self, session: PostgresSession, fence: int | None) -> bool:
        return session.ask("SELECT pg_advisory_unlock($1)", self._key) == ["t"]

    @property
    def _key(self) -> str:
        return str(number(self.name, 8))


def number(name: str, size: int) -> int:
    """Return a hash of `name` as a signed number of `size` bytes: the same in every process and on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:size], "big", signed=True)


def refuse_what_is_no_text(name: str) -> None:
    """Raise ValueError for a name that Postgres would cut short or refuse."""
    if "\0" in name:
        raise ValueError(f"the name of a lock in Postgres may not contain a zero byte: {name!r}")
    name.encode()  # UnicodeEncodeError, which is a ValueError, for half a surrogate pair
