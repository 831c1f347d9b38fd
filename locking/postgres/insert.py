"""InsertLock: a row that only one client can insert. This client holds the lock until it deletes the row."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from locking.arguments import require_flag
from locking.errors import LockError, LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.postgres.errors import IDLE_SESSION_TIMEOUT, LOCK_NOT_AVAILABLE, SessionEnded, StatementRefused
from locking.postgres.names import advisory_key, require_storable_name
from locking.postgres.session import PostgresSession
from locking.postgres.settings import parameters
from locking.postgres.shared_sessions import SharedSessions
from locking.postgres.tables import NoSuchLock, ask_table
from locking.renewal import watchdog

logger = logging.getLogger(__name__)

INSERT = """
WITH won AS (
    INSERT INTO lock_grant AS present (name, owner, expires)
    SELECT $1, $2, clock_timestamp() + $3 * interval '1 second'
    WHERE NOT EXISTS (SELECT FROM lock_grant WHERE name = $1 AND expires > clock_timestamp())
        AND ($4::boolean OR pg_try_advisory_xact_lock_shared($5))
    ON CONFLICT (name) DO UPDATE
    SET owner = excluded.owner, expires = clock_timestamp() + $3 * interval '1 second'
    WHERE present.expires <= clock_timestamp()
    RETURNING name
)
SELECT
    (SELECT nextval('lock_fence') FROM won),
    (SELECT extract(epoch FROM expires - clock_timestamp()) FROM lock_grant WHERE name = $1)
"""
"""Take the lock if it is free and no other client is first in the queue.

$1 name, $2 owner, $3 TTL in seconds, $4 whether the caller is first in the queue, $5 advisory lock of the queue.

Returns the fence and the seconds until the present grant expires. The fence is null if the lock was not granted; the
seconds are null if unknown. The fence is taken from the sequence after the row was written, so it grows with every
grant. NOT EXISTS only saves refused callers a write; ON CONFLICT decides who gets the lock.
"""

EXTEND = """
WITH extended AS (
    UPDATE lock_grant AS present
    SET expires = greatest(expires, clock_timestamp() + mine.ttl * interval '1 second')
    FROM json_to_recordset($1) AS mine (name text, owner text, ttl double precision)
    WHERE present.name = mine.name AND present.owner = mine.owner AND expires > clock_timestamp()
    RETURNING present.owner
)
SELECT coalesce(json_agg(owner), '[]') FROM extended
"""
"""Extend the grants in $1, and return the owners of those that still existed."""

DELETE = """
WITH freed AS (DELETE FROM lock_grant WHERE name = $1 AND owner = $2 RETURNING name)
SELECT CASE WHEN pg_try_advisory_xact_lock($3) THEN '' ELSE pg_notify($4, '')::text END FROM freed
"""
"""Free the lock, and notify the first waiter in the queue. If there is one, it holds the advisory lock of the queue."""

PAUSE_IN_TTLS = 2
"""A waiter that sends nothing for this many of its TTLs loses its place in the queue. A running waiter asks once per
TTL."""


class InsertLock(Lock):
    """A lock that is a row of the table `lock_grant`. Only one client can insert the row; deleting it frees the lock.

    The lock holds no connection, so it outlives connections and even a restart of the server. The row contains the time
    until which the grant is valid, by the server's clock. After that, the next client takes the row over. The fence
    comes from a sequence, and is committed together with the row.

    If several threads of a process wait for the lock, one of them waits at the server. The others queue behind this
    thread in the process, in order of arrival, each within its own timeout, and take over its connection. A process
    thus uses one connection for each lock that it waits for, one for the renewals of all locks with the same
    `conninfo`, and one for each running request. Processes get the lock in the order in which they began to wait. So a
    thread may get it after a later thread of another process.

    Waiters queue for an advisory lock on the server. The first of them listens for the release (NOTIFY). It also asks
    for the lock as soon as the present grant should expire and then, if the holder renews the grant, once per TTL. It
    may thus notice the death of the holder up to one TTL late. The others sleep. A non-blocking attempt does not
    overtake them.

    A first waiter that is stopped (SIGSTOP, a suspended machine) delays the others for two of its TTLs. Then the server
    ends its session (`idle_session_timeout`), and the waiter queues again when it continues. Postgres 13 and older do
    not have this timeout: there, the others wait until the stopped waiter continues.

    The server identifies advisory locks by 64-bit numbers, so the queue is at a hash of the name. Names with the same
    hash share a queue; the probability that a million names contain such a pair is 3 in 100 million. This is safe, but
    a waiter for one name also waits behind the waiters for the other, and a non-blocking attempt is refused meanwhile.
    An application that takes an advisory lock on the same number delays and refuses them, too.

    Mutual exclusion holds as long as the server keeps its data and its clock is not set forward.

    Args:
        conninfo: where to connect, as for `psycopg.connect`: to the server itself, or through a pooler that keeps
            sessions. Its `application_name` is replaced by the lock's name.
        name: name of the lock, such as `stock:sku-42`.
        ttl: lifetime of a grant in seconds, unless it is extended. A lock whose holder has died is free after this
            time. Use several times the longest pause that a holder should survive. The work may take longer, because
            leases are renewed.
        renew: whether the watchdog of the process extends the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the name is empty or not valid text for Postgres, `ttl` is out of range, or `conninfo` cannot be
            parsed.
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        fenced=True,
        fair=True,
        expires=True,
        renews=True,
        quiet_wait=True,
        forks=True,
        survives_holder_crash=True,
        survives_restart=True,
    )

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        ttl: float = 10.0,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=ttl, on_lost=on_lost, clock=clock)
        require_flag("renew", renew)
        name = require_storable_name(name)
        self._sessions = SharedSessions((type(self), conninfo, name), parameters(conninfo), name)
        self._renewer = InsertRenewer(conninfo) if renew else None
        # An AdvisoryLock cannot have this name, because names may not contain a zero byte.
        self._queue_key = str(advisory_key(f"line\0{name}"))
        self._channel = f"lock_{advisory_key(name) & 0xFFFF_FFFF_FFFF_FFFF:016x}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`.

        The server has ten seconds to accept the connection and for each answer, even if `timeout` is shorter.

        Raises:
            NoSuchLock: the table does not exist.
            LockUnavailable: the server could not be reached, did not answer in time, or refused the request.
            ValueError: `timeout` is out of range, or was given although `blocking` is False.
        """
        wait_seconds = wait_timeout(blocking, timeout)
        deadline = self._clock() + wait_seconds
        if wait_seconds == 0:
            return self._ask(deadline)
        lease = None
        try:
            with self._sessions.turn(wait_seconds) as first:
                lease = self._ask(deadline) if first else None
        except BaseException:
            if lease is not None:  # interrupted after the grant: nobody would use the lease
                with suppress(LockError):
                    lease.release()
            raise
        return lease

    def _ask(self, deadline: float) -> Lease | None:
        """Ask the server for the lock, and queue there until `deadline`. Return None if the lock was not granted."""
        while True:
            try:
                return self._try(deadline)
            except StatementRefused as refused:
                if refused.sqlstate != LOCK_NOT_AVAILABLE:
                    raise
                return None
            except SessionEnded as ended:
                if ended.sqlstate != IDLE_SESSION_TIMEOUT:
                    raise
                # This process was stopped for so long that the server ended its session. This waiter has lost its place
                # in the queue to the next waiter.
                if deadline <= self._clock():
                    return None

    def _try(self, deadline: float) -> Lease | None:
        """Make one attempt to get the lock, and queue at the server until `deadline`.

        Return None if the lock was not granted.

        Raises:
            SessionEnded: with IDLE_SESSION_TIMEOUT, the place in the queue is lost.
        """
        # a new token, so that a late undo of one attempt does not end the grant of the next
        token = secrets.token_hex(16)
        wait_seconds = max(0.0, deadline - self._clock())
        with self._sessions.use(wait_seconds, PAUSE_IN_TTLS * self.ttl) as session:
            try:
                answer = self._insert(session, token, first_in_queue=False)
                if isinstance(answer, Lease):
                    return answer
                return self._wait(session, token, deadline) if wait_seconds > 0 else None
            except (StatementRefused, NoSuchLock):
                raise
            except BaseException:
                # The attempt was interrupted or not answered. Undo a grant that was made, because nobody would use it.
                with suppress(LockError):
                    self._delete(token)
                raise

    def _insert(self, session: PostgresSession, token: str, *, first_in_queue: bool) -> Lease | HeldElsewhere:
        """Ask the server once for the lock. Return the lease or the refusal."""
        started = self._clock()
        values = (self.name, token, str(self.ttl), str(first_in_queue), self._queue_key)
        fence, left = ask_table(session, self.name, INSERT, *values)
        if fence is None:
            return HeldElsewhere(self.ttl if left is None else max(0.0, float(left)))
        lease = Lease(
            self,
            token,
            started=started,
            ttl=self.ttl,
            fence=int(fence),
            on_lost=self._on_lost,
            clock=self._clock,
        )
        self._require_time_left(lease)
        if self._renewer is not None or self._on_lost is not None:
            watchdog.watch(lease, self._renewer)
        return lease._hand_out()

    def _wait(self, session: PostgresSession, token: str, deadline: float) -> Lease | None:
        session.ask("SELECT pg_advisory_lock($1)", self._queue_key, waits=max(0.0, deadline - self._clock()))
        try:
            session.ask(f"LISTEN {self._channel}")
            shortest = 0.0
            while (left := deadline - self._clock()) > 0:
                answer = self._insert(session, token, first_in_queue=True)
                if isinstance(answer, Lease):
                    return answer
                # If the lock is still held after a sleep without notification, its holder renews the grant. Then
                # ask only once per TTL.
                # A longer sleep could reach the idle timeout of the session.
                notified = session.sleep(min(max(answer.left, shortest), self.ttl, left))
                shortest = 0.0 if notified else self.ttl
            return None
        finally:
            # Let the next waiter go on now. Otherwise it would wait until the server notices the end of this session.
            try:
                session.ask(f"UNLISTEN *; SELECT pg_advisory_unlock({self._queue_key})")
            except LockUnavailable:
                session.close()  # a session that is still in the queue must not serve another thread

    def _extend(self, lease: Lease, ttl: float) -> bool:
        with self._sessions.use() as session:
            return lease.token in _extended(session, [(lease, ttl)])

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return self._delete(lease.token)

    def _delete(self, token: str) -> bool:
        with self._sessions.use() as session:
            return bool(session.ask(DELETE, self.name, token, self._queue_key, self._channel))


class HeldElsewhere(NamedTuple):
    """The answer to an attempt that was refused: the lock is held, or other clients wait for the lock.

    Attributes:
        left: seconds until the present grant expires unless it is renewed; the TTL if this time is unknown.
    """

    left: float


class InsertRenewer:
    """Extends the leases of all locks with the same `conninfo`, over one session.

    Implements `locking.renewal.Renewer`.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._session: PostgresSession | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InsertRenewer) and other._conninfo == self._conninfo

    def __hash__(self) -> int:
        return hash((InsertRenewer, self._conninfo))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease by its TTL, in one round trip. See `locking.renewal.Renewer.renew`."""
        try:
            if self._session is None or self._session.ended:
                self._session = PostgresSession(parameters(self._conninfo), "renewal", answer_timeout=seconds / 3)
            self._session.answer_timeout = seconds / 3
            extended = _extended(self._session, [(lease, lease.ttl) for lease in leases])
        except LockUnavailable as error:
            logger.warning("%d leases were not renewed (%r); the watchdog tries again.", len(leases), str(error))
            self.close()
            return [None] * len(leases)
        return [lease.token in extended for lease in leases]

    def close(self) -> None:
        """Close the session. The renewer may be used again."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _extended(session: PostgresSession, wanted: Sequence[tuple[Lease, float]]) -> set[str]:
    """Extend each lease by its number of seconds from now. Return the tokens of the leases that held their lock."""
    grants = [{"name": lease.name, "owner": lease.token, "ttl": ttl} for lease, ttl in wanted]
    # Send names without JSON escapes: a database with the encoding SQL_ASCII refuses the escape of a character that is
    # not ASCII.
    (owners,) = session.ask(EXTEND, json.dumps(grants, ensure_ascii=False))
    return set(json.loads(cast(str, owners)))
