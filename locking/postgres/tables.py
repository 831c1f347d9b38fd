"""Locks that are rows of a table: RowLock locks a row that is there, InsertLock is a row that only one can insert.

They need the tables of `LOCK_TABLES`. Make them once, with `create_lock_tables` or in a migration of yours.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from locking.errors import LockError, LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.postgres.advisory import AdvisoryLock, Grant, SessionLock, number, refuse_what_is_no_text
from locking.postgres.session import (
    IDLE_SESSION_TIMEOUT,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    Ended,
    PostgresSession,
    StatementRefused,
    limit,
    parameters,
)
from locking.renewal import watchdog

logger = logging.getLogger(__name__)

LOCK_TABLES = """
CREATE TABLE IF NOT EXISTS lock_row (
    name text PRIMARY KEY,
    fence bigint NOT NULL DEFAULT 0    -- of the last grant that was released
);
CREATE TABLE IF NOT EXISTS lock_grant (
    name text PRIMARY KEY,             -- there is one grant of a lock, or none
    owner text NOT NULL,               -- the token of the lease
    expires timestamptz NOT NULL       -- by the server's clock
);
CREATE SEQUENCE IF NOT EXISTS lock_fence;
"""
"""What the locks of this module need, for your migration or for `create_lock_tables`."""

UNDEFINED_TABLE = "42P01"

BEGIN = "BEGIN; SET LOCAL statement_timeout = {limit}"
"""A statement waits for one lock of the row after the other, and `lock_timeout` counts for each anew."""

LOCK_ROW = """
WITH held AS (SELECT fence FROM lock_row WHERE name = $1 FOR UPDATE{nowait})
SELECT
    greatest(fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    set_config('statement_timeout', '0', true)
FROM held
"""
"""Waits in `held`, so that the fence is made when the lock is ours and not before. The limit was for the wait alone."""

NOTE_FENCE = "UPDATE lock_row SET fence = $2::bigint WHERE name = $1"

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
"""Takes the lock if nobody has it ($1 name, $2 owner, $3 TTL) and if it is our turn ($4), or nobody waits ($5).

Returns the fence, drawn after the row was won, or null; and for how many seconds more somebody else has the lock, or
null when that is not known. NOT EXISTS saves those who come in vain from writing; the conflict decides.
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
"""Extends many grants ($1) and returns the owners of those that were still there."""

DELETE = """
WITH freed AS (DELETE FROM lock_grant WHERE name = $1 AND owner = $2 RETURNING name)
SELECT CASE WHEN pg_try_advisory_xact_lock($3) THEN '' ELSE pg_notify($4, '')::text END FROM freed
"""
"""Frees the lock, and wakes the waiter whose turn it is, if there is one: its advisory lock says so."""

PAUSE_IN_TTLS = 2
"""For how many TTLs of its own a waiter may ask nothing before it loses its place in line. It asks once a TTL."""


class NoSuchLock(LockError):
    """The table or the row of this lock does not exist. It has to be made before the lock can be used."""


def create_lock_tables(conninfo: str) -> None:
    """Make the tables of `LOCK_TABLES` where they are missing.

    Raises:
        ValueError: `conninfo` cannot be read.
        LockUnavailable: the server cannot be reached, or refuses.
    """
    # Two who say CREATE IF NOT EXISTS at once get an error.
    with (
        AdvisoryLock(conninfo, "create lock tables").hold(),
        PostgresSession(parameters(conninfo), "tables") as session,
    ):
        session.ask(LOCK_TABLES)


def add_row(conninfo: str, name: str) -> None:
    """Make the row that a `RowLock` of this name locks, where it is missing.

    Raises:
        ValueError: the name is empty or not a text for Postgres, or `conninfo` cannot be read.
        LockUnavailable: the server cannot be reached.
        NoSuchLock: the table does not exist.
    """
    lock = RowLock(conninfo, name)  # which refuses what could never be locked
    with PostgresSession(lock._conninfo, name) as session:
        _ask(session, name, "INSERT INTO lock_row (name) VALUES ($1) ON CONFLICT DO NOTHING", name)


class RowLock(SessionLock):
    """The lock on a row, `SELECT … FOR UPDATE`, held by an open transaction: one row a name, in the table `lock_row`.

    The row must exist: see `add_row`. Without it there is nothing to lock, and `acquire` says so.

    The fence is the greater of the server's microseconds and the last released fence + 1: releases write it down, and
    holders that die do not. So it grows as long as nobody sets the server's clock back. If somebody does, who comes
    after a holder that died may have the same fence, or a smaller one, until the clock has caught up.

    Hold it briefly: an open transaction keeps VACUUM from removing what became dead since. A newcomer may overtake
    those who wait.

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

    def _take(self, session: PostgresSession, left: float) -> Grant | None:
        deadline = self._clock() + left
        session.ask(BEGIN.format(limit=limit(left) if 0 < left < math.inf else 0))
        lock_row = LOCK_ROW.format(nowait="" if left > 0 else " NOWAIT")
        try:
            row = _ask(session, self.name, lock_row, self.name, waits=left)
        except StatementRefused as refused:
            if refused.sqlstate == QUERY_CANCELED and self._clock() >= deadline:
                return None
            raise
        if not row:
            raise NoSuchLock(
                f"There is no row {self.name!r} in lock_row, so there is nothing to lock. Make it once: "
                f"locking.postgres.tables.add_row(conninfo, {self.name!r})"
            )
        return Grant(int(cast(str, row[0])))

    def _free(self, session: PostgresSession, fence: int | None) -> bool:
        session.ask(NOTE_FENCE, self.name, str(fence))
        session.ask("COMMIT")
        return True


class InsertLock(Lock):
    """A row that only one can insert: who does holds the lock, and deletes the row to free it. Table `lock_grant`.

    No connection is held with it, so it outlives the connection and even a restart of the server. The row says until
    when the grant counts, by the server's clock; after that the next one takes it over. The fence comes from a
    sequence, drawn and committed with the row.

    Waiters stand in line at an advisory lock of the server's. The first of them listens for the release (NOTIFY) and
    looks when the present grant expires, and when that is renewed once a TTL of its own, so it may see that late that
    the holder has died; the others sleep. A single try may not overtake them. One that is stopped
    (SIGSTOP, a suspended machine) holds up the others for two of its TTLs when its turn has come: then the server ends
    its session, and it lines up again when it goes on. Postgres 13 and older have no such timeout: there the others
    wait for as long as it is stopped.

    The server knows 64-bit numbers, not names, and the line is at a hash of the name. Two names may have the same one
    (any two of a million names with a chance of 3 in 100 million). Then they share a line, which is safe, but who wants
    the one, free as it may be, waits behind those who wait for the other, and a single try is refused. So it is when
    others take an advisory lock on that number.

    It excludes others for as long as the server keeps its data and nobody sets its clock forward.

    Args:
        conninfo: where to connect, as for `psycopg.connect`: to the server itself, or through a pooler that keeps
            sessions. Its `application_name` is replaced by the lock's name.
        name: what is locked.
        ttl: seconds after which the lock is free again when its holder has died. Several times the longest pause that
            a holder should survive; not the length of the work, which renewal covers.
        renew: let the watchdog of the process extend the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: the name is empty or not a text for Postgres, `ttl` is not a usable time, or `conninfo` cannot be
            read.
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
        super().__init__(name, ttl=ttl)
        refuse_what_is_no_text(name)
        if ttl == math.inf:
            raise ValueError("an insert lock needs a finite ttl: without one a crashed holder would keep it for ever")
        self._conninfo = parameters(conninfo)
        self._on_lost = on_lost
        self._clock = clock
        self._renewer = InsertRenewer(conninfo) if renew else None
        # No AdvisoryLock is on that number by its name: none may contain a zero byte.
        self._line = str(number(f"line\0{name}", 8))
        self._channel = f"lock_{number(name, 8) & 0xFFFF_FFFF_FFFF_FFFF:016x}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. A server that does not answer is waited for ten seconds, however short `timeout` is."""
        waits = wait_timeout(blocking, timeout)
        deadline = self._clock() + waits
        while True:
            try:
                return self._try(deadline, waits)
            except StatementRefused as refused:
                if refused.sqlstate != LOCK_NOT_AVAILABLE:
                    raise
                return None
            except Ended as ended:
                if ended.sqlstate != IDLE_SESSION_TIMEOUT:
                    raise
                # We were stopped for so long that somebody else had our turn.
                waits = deadline - self._clock()
                if waits <= 0:
                    return None

    def _try(self, deadline: float, waits: float) -> Lease | None:
        """Ask and, if `waits` is not 0, line up. Ended with IDLE_SESSION_TIMEOUT says that our place is gone."""
        token = secrets.token_hex(16)  # one for each try, so that giving back one of them late takes no other
        with PostgresSession(self._conninfo, self.name, waits, idle=PAUSE_IN_TTLS * self.ttl) as session:
            try:
                answer = self._insert(session, token, our_turn=False)
                if isinstance(answer, Lease):
                    return answer
                return self._wait(session, token, deadline) if waits > 0 else None
            except (StatementRefused, NoSuchLock):
                raise
            except BaseException:
                # Interrupted, or left without an answer: nobody will use what may have been granted.
                with suppress(LockError):
                    self._delete(token)
                raise

    def _insert(self, session: PostgresSession, token: str, *, our_turn: bool) -> Lease | Taken:
        """Ask once, and return the lease, or for how long somebody else has the lock."""
        started = self._clock()
        values = (self.name, token, str(self.ttl), str(our_turn), self._line)
        fence, left = _ask(session, self.name, INSERT, *values)
        if fence is None:
            return Taken(self.ttl if left is None else max(0.0, float(left)))
        lease = Lease(
            self,
            token,
            started=started,
            ttl=self.ttl,
            fence=int(fence),
            on_lost=self._on_lost,
            clock=self._clock,
        )
        if self._renewer is not None or self._on_lost is not None:
            watchdog.watch(lease, self._renewer)
        return lease

    def _wait(self, session: PostgresSession, token: str, deadline: float) -> Lease | None:
        session.ask("SELECT pg_advisory_lock($1)", self._line, waits=max(0.0, deadline - self._clock()))
        try:
            session.ask(f"LISTEN {self._channel}")
            shortest = 0.0
            while (left := deadline - self._clock()) > 0:
                answer = self._insert(session, token, our_turn=True)
                if isinstance(answer, Lease):
                    return answer
                # When nobody woke us and it is still held, somebody renews it: from then on once a TTL will do. Later
                # than that the server would take us for stopped.
                woken = session.sleep(min(max(answer.left, shortest), self.ttl, left))
                shortest = 0.0 if woken else self.ttl
            return None
        finally:
            # Now, and not when the server notices that we are gone: the next one may come. Without an answer it does.
            with suppress(LockUnavailable):
                session.ask("SELECT pg_advisory_unlock($1)", self._line)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        with PostgresSession(self._conninfo, self.name) as session:
            return lease.token in _extended(session, [(lease, ttl)])

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return self._delete(lease.token)

    def _delete(self, token: str) -> bool:
        with PostgresSession(self._conninfo, self.name) as session:
            return bool(session.ask(DELETE, self.name, token, self._line, self._channel))


class Taken(NamedTuple):
    """Somebody else has the lock.

    Attributes:
        left: for how many seconds more, unless it is renewed.
    """

    left: float


class InsertRenewer:
    """Extends all leases on the server of one `conninfo`, over one session. See `locking.renewal.Renewer`."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._session: PostgresSession | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InsertRenewer) and other._conninfo == self._conninfo

    def __hash__(self) -> int:
        return hash((InsertRenewer, self._conninfo))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """See `Renewer.renew`."""
        try:
            if self._session is None or self._session.ended:
                self._session = PostgresSession(parameters(self._conninfo), "renewal", answers=seconds / 3)
            self._session.answers = seconds / 3
            extended = _extended(self._session, [(lease, lease.ttl) for lease in leases])
        except LockUnavailable as error:
            logger.warning("%d leases were not renewed (%s); it is tried again.", len(leases), error)
            self.close()
            return [None] * len(leases)
        return [lease.token in extended for lease in leases]

    def close(self) -> None:
        """See `Renewer.close`."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _extended(session: PostgresSession, wanted: Sequence[tuple[Lease, float]]) -> set[str]:
    """Keep each lease for so many seconds from now, and return the tokens of those that were still there."""
    grants = [{"name": lease.name, "owner": lease.token, "ttl": ttl} for lease, ttl in wanted]
    (owners,) = session.ask(EXTEND, json.dumps(grants))
    return set(json.loads(cast(str, owners)))


def _ask(session: PostgresSession, name: str, statement: str, *values: str, **options: Any) -> list[str | None]:
    """Ask, and say what to do when the table does not exist."""
    try:
        return session.ask(statement, *values, **options)
    except StatementRefused as refused:
        if refused.sqlstate == UNDEFINED_TABLE:
            raise NoSuchLock(
                f"The table of lock {name!r} does not exist. Call locking.postgres.create_lock_tables(conninfo) once."
            ) from refused
        raise
