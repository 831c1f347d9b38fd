"""SessionLock: base class of locks that are bound to a connection, and SessionLease, their lease.

The server keeps such a lock while the connection of the holder is open. There is no TTL and no renewal. When a holder
crashes, the lock is free as soon as the holder's connection has ended. In return, a holder that is still at work loses
the lock when its connection ends. Every use of the lease therefore checks the connection's socket. The watchdog also
checks the socket, to call `on_lost`.

Connect to the server directly, or through a pooler that keeps sessions. A pooler that shares sessions between
transactions (PgBouncer's `pool_mode = transaction`) would give the lock to another client's session. The server must be
the primary. A standby is refused, because its locks exclude no client of the primary.
"""

from __future__ import annotations

import math
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from locking.lease import Lease
from locking.lock import Lock, wait_timeout
from locking.postgres.errors import LOCK_NOT_AVAILABLE, StatementRefused
from locking.postgres.names import require_storable_name
from locking.postgres.session import PostgresSession
from locking.postgres.settings import parameters
from locking.postgres.shared_sessions import SharedSessions
from locking.renewal import watchdog


class SessionGrant(NamedTuple):
    """A lock that the server has granted to a session.

    Attributes:
        fence: fencing token, or None if the lock has none.
    """

    fence: int | None


class SessionLock(Lock):
    """A lock that is held by a connection. Each holder has a connection of its own.

    If several threads of a process wait for the lock, one of them waits at the server. The others queue behind this
    thread in the process, in order of arrival, each within its own timeout. While threads wait, the connection of a
    released lease goes to the next of them; otherwise it is closed. A process thus uses one connection to hold a lock,
    and one or two to wait for it, for any number of waiting threads.

    A lease is lost when its connection ends, for instance because the backend was terminated or the server stopped.
    `lost`, `check()` and `remaining()` see this immediately; `on_lost` is called within a fraction of a second. If a
    network drops packets silently, the client's TCP keepalives notice it within 16 seconds. This is well before the
    server's own keepalives give the lock away. Until then, and while this machine is suspended, the lease counts as
    held. `extend` only checks the connection, since there is no TTL to extend.

    A process that is stopped (SIGSTOP) keeps its connection, because its kernel answers the keepalives. A stopped
    holder thus keeps the lock until it continues. A stopped waiter that is granted the lock keeps it, too.

    A lease that is dropped without `release()` closes its connection, which frees the lock.

    Args:
        conninfo: where to connect, as for `psycopg.connect`. Its `application_name` is replaced by the lock's name.
        name: name of the lock, such as `stock:sku-42`.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the name is empty or not valid text for Postgres, or `conninfo` cannot be parsed.
    """

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=math.inf, on_lost=on_lost, clock=clock)
        name = require_storable_name(name)
        self._sessions = SharedSessions((type(self), conninfo, name), parameters(conninfo), name)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`.

        The server has ten seconds to accept the connection and for each answer, even if `timeout` is shorter.
        """
        wait_seconds = wait_timeout(blocking, timeout)
        deadline = self._clock() + wait_seconds
        if wait_seconds == 0:
            return self._ask(deadline)
        with self._sessions.turn(wait_seconds) as first:
            return self._ask(deadline) if first else None

    def _ask(self, deadline: float) -> Lease | None:
        """Ask the server for the lock, and wait there until `deadline`. Return None if the lock was not granted."""
        started = self._clock()
        lease = None
        session = self._sessions.take(max(0.0, deadline - started))
        try:
            grant = self._take(session, max(0.0, deadline - self._clock()))
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
    def _take(self, session: PostgresSession, left: float) -> SessionGrant | None:
        """Ask for the lock, and wait for up to `left` seconds (0: do not wait). A timeout of the server ends the wait.

        Returns:
            The grant, or None if the lock is taken.

        Raises:
            StatementRefused: Postgres refused the statement. With the code LOCK_NOT_AVAILABLE, the wait was over, and
                the caller treats it like None.
        """

    @abstractmethod
    def _free(self, session: PostgresSession, fence: int | None) -> bool:
        """Give the lock back, and return whether the session still had it."""

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
        return lease._hand_out()

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return not lease._ended()

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        session_lease = cast(SessionLease, lease)
        session = session_lease.session
        if session is None:
            return False
        # If two threads release the lease at the same time, only the first one sends the statement.
        # The second one finds no session in the lease. That session may already serve the next waiter.
        with session.statement_lock:
            if session_lease.session is None:
                return False
            try:
                still_held = not session.ended and self._free(session, lease.fence)
            except BaseException:
                session.close()  # which frees the lock
                raise
            session_lease.session = None
        if still_held:
            self._sessions.give_back(session)
        else:
            session.close()
        return still_held


class SessionLease(Lease):
    """A lease that ends with its connection.

    Args:
        session: the connection.

    Attributes:
        session: the connection; None once the lock is released.
    """

    __slots__ = ("session",)

    def __init__(self, *args: Any, session: PostgresSession, **options: Any) -> None:
        self.session: PostgresSession | None = session
        super().__init__(*args, **options)

    def _ended(self) -> bool:
        session = self.session
        if session is None or not session.statement_lock.acquire(blocking=False):
            return session is None  # another thread uses the session, and notices its end
        try:
            # Check `self.session` again: after a release, the session may already serve the next holder.
            # An answer to that holder would look like the end of the session.
            return self.session is None or session.ended
        finally:
            session.statement_lock.release()
