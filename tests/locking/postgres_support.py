"""Helpers of the tests of the locks on Postgres: a server, recipes, and counts of what a lock leaves behind."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from locking import Lock
from locking.local import _queues
from locking.postgres import AdvisoryLock, InsertLock, RowLock, add_row, create_lock_tables, session
from locking.postgres.session_lock import SessionLock
from locking.postgres.shared_sessions import SharedSessions, _spare
from servers.postgres import DATABASE, PORT, USER, Postgres
from tests.locking.support import FileCell, Patch, Proxies, acquired, fork_sleeper, run_folder, started
from tests.waiting import WAIT_TIMEOUT, wait_for

# Allow 25 processes with several sessions each, and log each statement with its application name.
EXTRA = ("--max_connections=400", "--log_statement=all", "--log_line_prefix=<%a>", "--deadlock_timeout=100ms")


@contextmanager
def running_postgres(*options: str) -> Iterator[Postgres]:
    """Run a server for tests. `options` override the default options."""
    with run_folder() as folder:
        postgres = Postgres(folder.postgres)
        postgres.child.args.extend([*EXTRA, *options])
        with started(postgres):
            create_lock_tables(conninfo_of(postgres))
            yield postgres


def conninfo_of(postgres: Postgres) -> str:
    return f"host={postgres.folder} dbname={DATABASE} user={USER}"


@dataclass(frozen=True)
class PostgresRecipe:
    """Makes locks of one kind on the server at `conninfo`."""

    kind: type[AdvisoryLock] | type[RowLock] | type[InsertLock]
    conninfo: str
    cells: Path

    def __call__(self, name: str, **options: Any) -> Lock:
        lock = self.kind(self.conninfo, name, **options)
        if isinstance(lock, RowLock):
            _add_row_once(self.conninfo, name)
        return lock

    def cell(self, name: str) -> FileCell:
        return FileCell(self.cells / name.replace("/", "_"))

    @property
    def RELEASE(self) -> bytes:  # noqa: N802 - as those of other recipes
        return RELEASES[self.kind]

    def through(self, proxy: Proxies) -> Self:
        host, port = proxy(f"{conninfo_to_dict(self.conninfo)['host']}/.s.PGSQL.{PORT}")
        return replace(self, conninfo=make_conninfo(self.conninfo, host=host, port=port, sslmode="disable"))

    def close(self) -> None:
        """Do nothing: a recipe has no client."""


_add_row_once = functools.cache(add_row)  # Add a row once: this opens a session, and tests make many such objects.

RELEASES = {AdvisoryLock: b"pg_advisory_unlock", RowLock: b"COMMIT", InsertLock: b"DELETE FROM lock_grant"}


class PostgresTraces:
    """Counts what a lock leaves on its server, and wakes or delays its waiters."""

    postgres: Postgres
    admin: psycopg.Connection[Any]

    def one(self, query: str, *values: object) -> Any:
        row = self.admin.execute(query, values).fetchone()
        return row[0]

    def connections(self, name: str) -> int:
        return int(self.one("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", f"lock {name}"))

    def terminate(self, name: str) -> None:
        """End the lock's sessions at the server."""
        self.one(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s", f"lock {name}"
        )

    def locks(self, name: str, *, granted: bool) -> int:
        """Return how many locks of the server the connections of a lock hold, or wait for if not `granted`."""
        return int(
            self.one(
                "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                "WHERE application_name = %s AND locktype IN ('advisory', 'transactionid', 'tuple') AND granted = %s",
                f"lock {name}",
                granted,
            )
        )

    def waiters(self, lock: Lock) -> int:
        """Count the waiters that sleep at the server, and those that wait behind them in this process.

        An InsertLock's waiter that waits for a row does not count, because it is not in the queue yet.
        """
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        in_line = """
            SELECT count(*) FROM pg_stat_activity JOIN pg_locks USING (pid)
            WHERE application_name = %s AND locktype = 'advisory'
                AND (NOT granted OR (state = 'idle' AND query LIKE '%%INSERT INTO lock_grant AS present%%'))
        """
        asleep = int(self.one(in_line if isinstance(lock, InsertLock) else waiting, f"lock {lock.name}"))
        # In this process, all waiters but one wait for the one that sleeps at the server.
        local = sum(len(queue) - 1 for name, queue in list(_queues.items()) if _is_of(lock, name))
        return asleep + (local if asleep else 0)

    def traces(self, lock: Lock) -> dict[str, int]:
        """Count what is left once the server has noticed all closed connections."""
        wait_for(
            lambda: self.connections(lock.name) == sum(opened._lock == lock.name for opened in list(session._open)),
            "the server to notice which connections are closed",
        )
        return {
            "in line here": len(_queues),
            "spare sessions": len(_spare),
            "connections": self.connections(lock.name),
            "locks": self.locks(lock.name, granted=True) + self.locks(lock.name, granted=False),
            "grants": self.one("SELECT count(*) FROM lock_grant WHERE name = %s", lock.name),
            "rows": self.one("SELECT count(*) FROM lock_row WHERE name = %s", lock.name),
        }

    def written(self, lock: Lock) -> int:
        """Count changed rows once ended sessions have reported their changes."""
        ours = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'lock ')"
        wait_for(lambda: self.one(ours) <= len(session._open), "the server to notice which connections are closed")
        return int(self.one("SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables"))

    def asked(self, lock: Lock) -> int:
        """Count the lock's statements in the server's log."""
        lines = self.postgres.child.log.read_text(errors="replace").splitlines()
        return sum(line.startswith(f"<lock {lock.name}>") and "LOG:  " in line for line in lines)


def separate(lock: Any) -> Any:
    """Return a copy of the lock whose waiters have their own queue, as in another process."""
    other = copy(lock)
    other._sessions = SharedSessions((type(lock), object(), lock.name), lock._sessions._conninfo, lock.name)
    return other


def _is_of(lock: Lock, queue: Hashable) -> bool:
    """Return whether a local queue belongs to the lock."""
    return isinstance(queue, tuple) and issubclass(queue[0], SessionLock | InsertLock) and queue[2] == lock.name


class SessionWaits:
    """Wakes and delays waiters that sleep inside a statement on the server."""

    waiters: Callable[[Lock], int]

    @contextmanager
    def woken_in_vain(self, lock: Lock) -> Iterator[Callable[[], object]]:
        """Yield a function that ends the holder's session. The lock then goes to a waiter that has come first."""
        handed, end = threading.Event(), threading.Event()
        lease = acquired(lock)

        def stand_before() -> None:
            with separate(lock).hold(timeout=2 * WAIT_TIMEOUT):
                handed.set()
                end.wait(WAIT_TIMEOUT)

        def wake() -> None:
            lease.session.close()
            assert handed.wait(WAIT_TIMEOUT)

        thread = threading.Thread(target=stand_before)
        thread.start()
        wait_for(lambda: self.waiters(lock) == 1)
        try:
            yield wake
        finally:
            lease.release()
            end.set()
            thread.join(WAIT_TIMEOUT)

    def before_sleep(self, monkeypatch: Patch, body: Callable[[], object]) -> None:
        """Run `body` before the statement that requests the lock and sleeps."""
        for kind in (AdvisoryLock, RowLock):

            def later(*args: Any, take: Callable[..., Any] = kind._take) -> Any:
                body()
                return take(*args)

            monkeypatch.setattr(kind, "_take", later)


class InsertWaits:
    """Wakes and delays waiters of an InsertLock, of which the first listens for notifications."""

    admin: psycopg.Connection[Any]

    @contextmanager
    def woken_in_vain(self, lock: Any) -> Iterator[Callable[[], object]]:
        with lock.hold():
            yield lambda: self.admin.execute(f"NOTIFY {lock._channel}")

    def before_sleep(self, monkeypatch: Patch, body: Callable[[], object]) -> None:
        sleep = session.PostgresSession.sleep

        def later(self: session.PostgresSession, seconds: float) -> bool:
            body()
            return sleep(self, seconds)

        monkeypatch.setattr(session.PostgresSession, "sleep", later)


def hold_and_fork(recipe: PostgresRecipe, name: str, disown: bool, pipe: Pipe) -> None:
    """Acquire the lock, fork a child that outlives this process, and report the child's process id."""
    if not disown:
        session._disown_all.__code__ = (lambda: None).__code__
    _held = acquired(recipe(name))
    pipe.send(fork_sleeper())
    pipe.recv()
