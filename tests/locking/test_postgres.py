"""The locks on Postgres."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from locking import Lease, LeaseLost, Lock, LockUnavailable
from locking.postgres import (
    AdvisoryLock,
    InsertLock,
    NoSuchLock,
    RowLock,
    add_row,
    advisory,
    create_lock_tables,
    insert,
    row,
    session,
)
from locking.postgres.insert import InsertRenewer
from locking.postgres.names import advisory_key
from locking.postgres.session import PostgresSession
from servers.postgres import Postgres, connect
from tests.locking import conformance as suite
from tests.locking.conformance import LONG, RENEWED, SHORT, fails, only, without
from tests.locking.postgres_support import (
    InsertWaits,
    PostgresRecipe,
    PostgresTraces,
    SessionWaits,
    conninfo_of,
    hold_and_fork,
    running_postgres,
    separate,
)
from tests.locking.proxy import Link
from tests.locking.support import Log, Patch, Pool, acquired, collect, in_fork, process, renew, run_threads
from tests.waiting import WAIT_TIMEOUT, wait_for

Admin = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def conninfo(server: Postgres) -> str:
    return conninfo_of(server)


@pytest.fixture(scope="module")
def admins(server: Postgres) -> Iterator[list[Admin]]:
    """Yield the sessions that this module's tests have opened. Only the last one is in use."""
    opened: list[Admin] = []
    yield opened
    for one in opened:
        one.close()


@pytest.fixture
def admin(server: Postgres, admins: list[Admin]) -> Admin:
    """Return a session that all tests share. Open a new one after a test has restarted the server."""
    with suppress(IndexError, psycopg.OperationalError):
        # Flush the statistics. Otherwise rows changed in an earlier test may be counted in this one.
        admins[-1].execute("SELECT pg_stat_force_next_flush()")
        return admins[-1]
    admins.append(connect(server.folder, database=server.database))
    return admins[-1]


Default = Callable[[str, str], None]


class OnPostgres(PostgresTraces):
    """Fixtures for tests of one kind of lock, and for tests of all kinds."""

    KIND: Any = AdvisoryLock
    PAIRS = 10  # Each opens a connection, for which the server starts a process.

    @pytest.fixture(autouse=True)
    def _server(self, server: Postgres, admin: Admin) -> None:
        self.postgres = server
        self.admin = admin

    @pytest.fixture
    def recipe(self, conninfo: str, tmp_path: Path) -> PostgresRecipe:
        return PostgresRecipe(self.KIND, conninfo, tmp_path)

    def restart(self) -> None:
        self.postgres.stop()
        self.postgres.start()

    @pytest.fixture
    def default(self, server: Postgres, admin: Admin) -> Iterator[Callable[[str, str], None]]:
        """Return a function that changes a default setting of the server until the end of the test."""

        def change(name: str, value: str) -> None:
            admin.execute(f"ALTER DATABASE {server.database} SET {name} = '{value}'")

        yield change
        admin.execute(f"ALTER DATABASE {server.database} RESET ALL")


@without("test_the_death_of_a_waiter_grants_nothing")  # The server notices the death when it grants the lock.
class TestAdvisoryLock(
    SessionWaits,
    OnPostgres,
    suite.AcrossMachinesConformance,
    suite.AcrossProcessesConformance,
    suite.FairConformance,
    suite.ForkConformance,
    suite.QuietWaitConformance,
    suite.SurvivesHolderCrashConformance,
):
    # The server grants the lock to a stopped waiter, which keeps it as long as its connection lives.
    FAILS = frozenset({"test_the_first_in_line_may_be_stopped"})
    RELEASE_WRITES = 0


@without("test_greenlets_each_own_a_lease")  # Its sessions are those of an AdvisoryLock.
class TestRowLock(
    SessionWaits,
    OnPostgres,
    suite.AcrossMachinesConformance,
    suite.AcrossProcessesConformance,
    suite.FencedConformance,
    suite.ForkConformance,
    suite.QuietWaitConformance,
    suite.SurvivesHolderCrashConformance,
):
    KIND = RowLock

    def forget(self, lock: Lock) -> None:
        self.admin.execute("UPDATE lock_row SET fence = 0 WHERE name = %s", [lock.name])


class TestInsertLock(
    InsertWaits,
    OnPostgres,
    suite.LeaseConformance,
    suite.FairConformance,
    suite.FencedConformance,
    suite.QuietWaitConformance,
):
    KIND = InsertLock
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": RENEWED}
    IMPATIENT = {"ttl": 2 * SHORT}

    def forget(self, lock: Lock) -> None:
        self.admin.execute("DELETE FROM lock_grant WHERE name = %s", [lock.name])


@fails("test_failed_waits_leave_nothing")
class TestAdvisoryLockThatKeepsItsConnections(TestAdvisoryLock):
    @pytest.fixture(autouse=True)
    def _keeps(self, monkeypatch: Patch) -> Iterator[None]:
        kept: list[PostgresSession] = []
        with monkeypatch.context() as patch:
            patch.setattr(PostgresSession, "close", lambda session: kept.append(session))
            yield
        for one in kept:
            one.close()


@fails("test_a_release_before_the_sleep_is_not_missed")
class TestInsertLockThatDoesNotListen(TestInsertLock):
    def deaf(self: Any, statement: str, *values: str, ask: Any = PostgresSession.ask, **options: Any) -> Any:
        return [] if statement.startswith("LISTEN") else ask(self, statement, *values, **options)

    FLAW = (PostgresSession, "ask", deaf)


@fails("test_an_idle_waiter_is_quiet")
class TestInsertLockThatPolls(TestInsertLock):
    sleep = PostgresSession.sleep
    FLAW = (PostgresSession, "sleep", lambda self, seconds, sleep=sleep: sleep(self, min(seconds, 0.05)))


@dataclass(frozen=True)
class PatientRecipe(PostgresRecipe):
    """Makes locks whose waiters keep their place in the queue, however long they are stopped."""

    def __call__(self, name: str, **options: Any) -> Lock:
        insert.PAUSE_IN_TTLS = 1000
        return super().__call__(name, **options)


@only("test_the_first_in_line_may_die", "test_the_first_in_line_may_be_stopped")
class TestInsertLockWhoseTurnEndsWithItsConnection(TestInsertLock):
    FAILS = frozenset({"test_the_first_in_line_may_be_stopped"})

    @pytest.fixture
    def recipe(self, conninfo: str, tmp_path: Path, monkeypatch: Patch) -> PostgresRecipe:
        monkeypatch.setattr(insert, "PAUSE_IN_TTLS", 1000)
        return PatientRecipe(self.KIND, conninfo, tmp_path)


@pytest.fixture(params=[AdvisoryLock, RowLock, InsertLock])
def any_recipe(request: pytest.FixtureRequest, conninfo: str, tmp_path: Path) -> PostgresRecipe:
    return PostgresRecipe(request.param, conninfo, tmp_path)


@pytest.fixture(params=[AdvisoryLock, RowLock])
def session_recipe(request: pytest.FixtureRequest, conninfo: str, tmp_path: Path) -> PostgresRecipe:
    """Return the recipe of a lock that a session holds."""
    return PostgresRecipe(request.param, conninfo, tmp_path)


def held(lock: Lock) -> Lease:
    return acquired(lock, timeout=WAIT_TIMEOUT)


def turn(lock: Lock) -> int | None:
    with lock.hold(timeout=WAIT_TIMEOUT) as lease:
        return lease.fence


class TestLostConnection(OnPostgres):
    def test_the_holder_is_told_once(self, session_recipe: PostgresRecipe) -> None:
        told: list[Lease] = []
        lease = held(session_recipe("cut", on_lost=told.append))
        lease.check()
        self.terminate("cut")
        wait_for(lambda: told)
        assert (lease.lost, lease.remaining()) == (True, 0.0)
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            lease.extend()
        assert lease.release() is False
        assert told == [lease]
        turn(session_recipe("cut"))

    def test_what_does_not_end_a_session_does_not_lose_the_lease(
        self, session_recipe: PostgresRecipe, default: Default
    ) -> None:
        told: list[Lease] = []
        lease = held(session_recipe("kept", on_lost=told.append))
        default("timezone", "Asia/Tokyo")
        self.admin.execute("ALTER SYSTEM SET timezone = 'Asia/Tokyo'")
        self.admin.execute("SELECT pg_reload_conf()")
        self.admin.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = %s", ["lock kept"]
        )
        turn(session_recipe("another"))  # Give the backend time to send a message.
        lease.check()
        lease.extend()
        assert (lease.release(), told) == (True, [])
        self.admin.execute("ALTER SYSTEM RESET timezone")
        self.admin.execute("SELECT pg_reload_conf()")

    def test_a_waiter_whose_connection_is_cut_is_told(self, any_recipe: PostgresRecipe, threads: Pool) -> None:
        lock = any_recipe("cut wait")
        lease = held(lock)
        waiting = threads.submit(lock.acquire)
        wait_for(lambda: self.waiters(lock) == 1)
        self.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lock cut wait' "
            "AND (wait_event_type = 'Lock' OR query LIKE '%INSERT%')"
        )
        with pytest.raises(LockUnavailable, match="lock 'cut wait'"):
            waiting.result(WAIT_TIMEOUT)
        assert lease.release() is True

    def test_an_insert_lock_holds_no_connection(self, conninfo: str) -> None:
        lease = held(InsertLock(conninfo, "afar", ttl=LONG))
        wait_for(lambda: self.connections("afar") == 0)
        lease.check()
        assert lease.release() is True


class TestServerGone:
    def test_it_says_so(self, server: Postgres, any_recipe: PostgresRecipe) -> None:
        lock = any_recipe("restart")
        survives = isinstance(lock, InsertLock)  # An InsertLock's row is committed.
        lease = held(lock)
        server.stop()
        try:
            assert lease.lost is not survives
            for blocking in (True, False):
                with pytest.raises(LockUnavailable, match=r"(?s)cannot be reached.*Try again"):
                    lock.acquire(blocking)
            if survives:
                with pytest.raises(LockUnavailable, match="cannot be reached"):
                    lease.extend()
        finally:
            server.start()
        assert lease.release() is survives


class TestServersTimeouts(OnPostgres):
    TIMEOUTS = ("idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout")

    def test_they_do_not_end_a_grant(self, session_recipe: PostgresRecipe, default: Default) -> None:
        for timeout in self.TIMEOUTS:
            default(timeout, "1min")
        lease: Any = held(session_recipe("timeouts"))
        assert [lease.session.ask(f"SHOW {timeout}") for timeout in self.TIMEOUTS] == [["0"]] * len(self.TIMEOUTS)
        assert lease.release() is True

    def test_without_setting_them_off_they_do(
        self, conninfo: str, tmp_path: Path, default: Default, monkeypatch: Patch
    ) -> None:
        only_ours = "SELECT set_config('lock_timeout', $1, false), set_config('idle_session_timeout', $2, false)"
        monkeypatch.setattr(session, "SETTINGS", only_ours)
        default("idle_in_transaction_session_timeout", "2s")  # The timeout must allow the lock to be acquired first.
        lease = held(PostgresRecipe(RowLock, conninfo, tmp_path)("not off"))
        wait_for(lambda: lease.lost)
        assert lease.release() is False

    def test_a_statement_timeout_does_not_end_a_wait(self, any_recipe: PostgresRecipe, default: Default) -> None:
        lock = any_recipe("statement")
        # The timeout must allow the statement that sets the session's timeout.
        default("statement_timeout", "500ms")
        with lock.hold():
            assert run_threads(*[lambda: lock.acquire(timeout=1.0)] * 2) == [None] * 2


class TestServersTransactions(OnPostgres):
    """A stricter default isolation level does not matter. A read-only server grants nothing."""

    WRITES = {
        RowLock: "UPDATE lock_row SET fence = 7 WHERE name = %s",
        InsertLock: "INSERT INTO lock_grant VALUES (%s, 'dead', clock_timestamp() - interval '1 s')",
    }

    @pytest.fixture(params=WRITES)
    def recipe(self, request: pytest.FixtureRequest, conninfo: str, tmp_path: Path) -> PostgresRecipe:
        return PostgresRecipe(request.param, conninfo, tmp_path)

    def test_a_read_only_server_grants_nothing(self, recipe: PostgresRecipe, default: Default) -> None:
        lock = recipe(f"read only {recipe.kind.__name__}")
        turn(lock)
        default("default_transaction_read_only", "on")
        with pytest.raises(LockUnavailable, match="25006"):
            turn(lock)

    @pytest.mark.parametrize("pinned", [True, False])
    def test_a_stricter_isolation_refuses_no_waiter(
        self, recipe: PostgresRecipe, default: Default, threads: Pool, monkeypatch: Patch, pinned: bool
    ) -> None:
        default("default_transaction_isolation", "repeatable read")
        if not pinned:
            ours = [line for line in session.SETTINGS.splitlines() if "'default_transaction_isolation'" not in line]
            assert len(ours) == len(session.SETTINGS.splitlines()) - 1
            monkeypatch.setattr(session, "SETTINGS", "\n".join(ours))
        lock = recipe(f"isolated {recipe.kind.__name__} {pinned}")
        with connect(self.postgres.folder, database=self.postgres.database) as other, other.transaction():
            other.execute(self.WRITES[lock.__class__], [lock.name])
            waiting = threads.submit(turn, lock)
            wait_for(lambda: self.locks(lock.name, granted=False) == 1)
        with nullcontext() if pinned else pytest.raises(LockUnavailable, match="40001"):
            waiting.result(WAIT_TIMEOUT)


class TestStandby:
    def test_the_locks_of_a_standby_are_refused(self, server: Postgres) -> None:
        lock, mark = AdvisoryLock(conninfo_of(server), "standby"), server.data / "standby.signal"
        turn(lock)
        server.stop()
        mark.touch()
        try:
            server.start()
            with pytest.raises(LockUnavailable, match=r"is a standby.*Name the primary"):
                lock.acquire(blocking=False)
        finally:
            server.stop()
            mark.unlink()
            server.start()


class TestRelease(OnPostgres):
    def test_a_session_without_the_lock_says_so(self, conninfo: str) -> None:
        lease = held(AdvisoryLock(conninfo, "elsewhere"))
        lease.session.ask("SELECT pg_advisory_unlock_all()")  # type: ignore[attr-defined]
        assert lease.release() is False

    @pytest.mark.parametrize("guarded", [True, False])
    def test_of_two_threads_one_asks(self, session_recipe: PostgresRecipe, monkeypatch: Patch, guarded: bool) -> None:
        """Only one of two threads uses the connection at a time, so they cannot read each other's answers."""
        lease = held(session_recipe("two threads"))
        if not guarded:
            lease.session.statement_lock = threading.Semaphore(2)  # type: ignore[attr-defined]
        both, met = threading.Barrier(2), list[bool]()

        def slow(self: PostgresSession, statement: str, *values: str) -> list[str | None]:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2 if guarded else WAIT_TIMEOUT)
                met.append(True)
            return ["t"]

        monkeypatch.setattr(PostgresSession, "ask", slow)
        answers = run_threads(lease.release, lease.release)
        assert bool(met) is not guarded
        assert not guarded or sorted(answers) == [False, True]


class TestFork(OnPostgres):
    @pytest.mark.parametrize("disowns", [True, False])
    def test_a_child_does_not_end_the_session(
        self, session_recipe: PostgresRecipe, monkeypatch: Patch, disowns: bool
    ) -> None:
        if not disowns:
            monkeypatch.setattr(PostgresSession, "disown", lambda self: None)
        holder = [held(session_recipe("fork"))]

        def drop() -> str:
            holder[0].session.close()  # type: ignore[attr-defined]
            holder.clear()
            collect()
            return "collected"

        assert in_fork(drop) == "collected"
        if disowns:
            holder[0].check()
            assert session_recipe("fork").acquire(blocking=False) is None
            assert holder[0].release() is True
        else:
            wait_for(lambda: holder[0].lost)

    def test_a_fork_during_a_look_does_not_block(self, session_recipe: PostgresRecipe) -> None:
        lease = held(session_recipe("fork"))
        with lease.session._mutex:  # type: ignore[attr-defined]
            assert run_threads(lambda: in_fork(lambda: str(lease.session.ended))) == ["True"]  # type: ignore[attr-defined]
        assert lease.release() is True

    @pytest.mark.parametrize("disown", [True, False])
    def test_a_child_does_not_keep_its_dead_parents_lock(self, conninfo: str, tmp_path: Path, disown: bool) -> None:
        recipe = PostgresRecipe(AdvisoryLock, conninfo, tmp_path)
        with process(hold_and_fork, recipe, f"orphan {disown}", disown) as (parent, pipe):
            child = pipe.recv()
            parent.kill()
            parent.join()
            lease = recipe(f"orphan {disown}").acquire(timeout=WAIT_TIMEOUT if disown else 0.5)
            os.kill(child, signal.SIGKILL)
        assert (lease is not None) is disown
        if lease is not None:
            lease.release()
        turn(recipe(f"orphan {disown}"))

    def test_a_child_renews_after_a_fork_during_a_look(self, conninfo: str) -> None:
        lock, renewer = InsertLock(conninfo, "child's", ttl=RENEWED), InsertRenewer(conninfo)
        lock._renewer = renewer
        with InsertLock(conninfo, "parent's", ttl=LONG).hold() as kept:
            assert renewer.renew([kept], LONG) == [True]
            inherited = renewer._session

            def renewed() -> str:
                with lock.hold(timeout=WAIT_TIMEOUT) as mine:
                    renew(mine)
                    return "renewed"

            with inherited._mutex:  # `ended` takes this mutex, too, so a forked child may inherit it locked.
                assert in_fork(renewed) == "renewed"
            assert renewer.renew([kept], LONG) == [True]
            assert renewer._session is inherited
        renewer.close()


class TestNames(OnPostgres):
    def test_names_of_one_hash_exclude_each_other(self, conninfo: str, monkeypatch: Patch) -> None:
        with AdvisoryLock(conninfo, "a").hold(), AdvisoryLock(conninfo, "b").hold(timeout=0):
            pass
        monkeypatch.setattr(advisory, "advisory_key", lambda name: 42)
        with AdvisoryLock(conninfo, "a").hold():
            assert AdvisoryLock(conninfo, "b").acquire(blocking=False) is None

    def test_any_text_is_a_name(self, any_recipe: PostgresRecipe) -> None:
        for name in ("x" * 500, "süß ∞", "it's %s $1 \\ \"", "\n"):
            lock = any_recipe(name)
            with lock.hold() as lease:
                assert lock.acquire(blocking=False) is None
                lease.extend()

    def test_any_text_is_a_name_in_a_database_without_encoding(self, conninfo: str) -> None:
        self.admin.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        plain = make_conninfo(conninfo, dbname="plain")
        create_lock_tables(plain)
        with InsertLock(plain, "süß ∞").hold(timeout=0) as lease:
            lease.extend()


class TestTables(OnPostgres):
    def test_a_missing_row_is_an_error(self, conninfo: str) -> None:
        lock = RowLock(conninfo, "no row")
        for attempt in (lock.acquire, lambda: lock.acquire(blocking=False), lambda: lock.acquire(timeout=1.0)):
            with pytest.raises(NoSuchLock, match=r"no row 'no row'.*add_row"):
                attempt()
        wait_for(lambda: self.connections("no row") == 0)
        add_row(conninfo, "no row")
        turn(lock)

    def test_a_row_deleted_under_a_waiter_is_an_error(self, conninfo: str, threads: Pool) -> None:
        add_row(conninfo, "deleted")
        lock = RowLock(conninfo, "deleted")
        with self.admin.transaction():
            self.admin.execute("DELETE FROM lock_row WHERE name = 'deleted'")
            waiting = threads.submit(lock.acquire)
            wait_for(lambda: self.one("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
        with pytest.raises(NoSuchLock, match="add_row"):
            waiting.result(WAIT_TIMEOUT)

    @pytest.mark.parametrize("kind", [RowLock, InsertLock])
    def test_a_missing_table_is_an_error(self, conninfo: str, kind: Any) -> None:
        empty = conninfo.replace(self.postgres.database, "postgres")
        with pytest.raises(NoSuchLock, match="create_lock_tables"):
            kind(empty, "x").acquire(blocking=False)

    def test_tables_may_be_made_by_many_at_once(self, conninfo: str) -> None:
        self.admin.execute("CREATE DATABASE many")
        many = conninfo.replace(self.postgres.database, "many")
        run_threads(*[lambda: create_lock_tables(many)] * 8)
        turn(InsertLock(many, "x"))


class TestRowTimeout(SessionWaits, OnPostgres):
    KIND = RowLock

    @pytest.mark.parametrize("limited", [True, False])
    def test_a_timeout_covers_both_waits(
        self, recipe: PostgresRecipe, threads: Pool, monkeypatch: Patch, limited: bool
    ) -> None:
        if not limited:
            monkeypatch.setattr(row, "BEGIN", "BEGIN")
        lock, timeout = recipe(f"total {limited}"), 2.0

        def wait() -> float:
            began = time.monotonic()
            assert lock.acquire(timeout=timeout) is None
            return time.monotonic() - began

        with self.woken_in_vain(lock) as wake:
            waiting = threads.submit(wait)
            wait_for(lambda: self.waiters(lock) == 2)
            waits = time.monotonic()
            wait_for(lambda: time.monotonic() > waits + timeout / 2)
            wake()
            assert (waiting.result(WAIT_TIMEOUT) < 1.5 * timeout) is limited

    def test_a_cancelled_wait_is_an_error(self, recipe: PostgresRecipe, threads: Pool) -> None:
        lock = recipe("cancelled")
        with lock.hold():
            waiting = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
            wait_for(lambda: self.waiters(lock) == 1)
            self.admin.execute("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted")
            with pytest.raises(LockUnavailable, match="Try again"):
                waiting.result(WAIT_TIMEOUT)

    def test_the_limit_of_the_wait_is_none_for_the_holder(self, recipe: PostgresRecipe) -> None:
        lock = recipe("unlimited")
        lease = acquired(lock, timeout=0.2)
        assert lease.session.ask("SHOW statement_timeout") == ["0"]  # type: ignore[attr-defined]
        lease.session.ask("SELECT pg_sleep(0.3)")  # type: ignore[attr-defined]
        assert lease.release() is True


class TestRowFence(OnPostgres):
    KIND = RowLock

    @pytest.mark.parametrize("clocked", [True, False])
    def test_it_grows_when_a_holder_died(self, recipe: PostgresRecipe, monkeypatch: Patch, clocked: bool) -> None:
        if not clocked:
            clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
            assert clock in row.LOCK_ROW
            monkeypatch.setattr(row, "LOCK_ROW", row.LOCK_ROW.replace(clock, "0"))
        lock = recipe(f"died {clocked}")
        before: Any = held(lock)
        self.terminate(lock.name)
        wait_for(lambda: before.lost)
        after: Any = turn(lock)
        assert after > before.fence if clocked else after == before.fence

    def test_it_grows_when_the_clock_was_set_back(self, recipe: PostgresRecipe) -> None:
        lock = recipe("clock")
        future = 2**62
        self.admin.execute("UPDATE lock_row SET fence = %s WHERE name = 'clock'", [future])
        assert [turn(lock), turn(lock)] == [future + 1, future + 2]


class TestInsert(OnPostgres):
    KIND = InsertLock

    def test_an_expired_grant_is_taken_over_by_one(self, recipe: PostgresRecipe) -> None:
        for round_ in range(2):
            name = f"expired {round_}"
            self.admin.execute("INSERT INTO lock_grant VALUES (%s, 'dead', clock_timestamp() - interval '1 s')", [name])
            leases = run_threads(*[lambda name=name: recipe(name, ttl=LONG).acquire(blocking=False)] * 8)
            assert len([lease for lease in leases if lease is not None]) == 1

    def test_without_the_guard_it_is_taken_from_its_holder(self, recipe: PostgresRecipe, monkeypatch: Patch) -> None:
        with recipe("guard").hold() as lease:
            assert recipe("guard").acquire(blocking=False) is None
            unguarded = insert.INSERT
            for guard, none in (
                ("WHERE present.expires <= clock_timestamp()", ""),
                ("expires > clock_timestamp())", "false)"),
            ):
                assert guard in unguarded
                unguarded = unguarded.replace(guard, none)
            monkeypatch.setattr(insert, "INSERT", unguarded)
            thief = acquired(recipe("guard"), blocking=False)
            assert lease.release() is False
            thief.release()

    def test_a_release_before_queueing_is_not_missed(self, recipe: PostgresRecipe, monkeypatch: Patch) -> None:
        lock = recipe("before the line", ttl=LONG)
        lease, ask = held(lock), PostgresSession.ask

        def release_first(self: PostgresSession, statement: str, *values: str, **options: Any) -> list[str | None]:
            if "pg_advisory_lock" in statement:
                assert lease.release() is True
            return ask(self, statement, *values, **options)

        monkeypatch.setattr(PostgresSession, "ask", release_first)
        turn(lock)

    def test_a_release_without_waiters_notifies_nobody(self, recipe: PostgresRecipe, threads: Pool) -> None:
        lock = recipe("quiet")
        assert isinstance(lock, InsertLock)
        self.admin.execute(f"LISTEN {lock._channel}")
        turn(lock)
        assert list(self.admin.notifies(timeout=0.2)) == []
        with lock.hold():
            waiting = threads.submit(turn, lock)
            wait_for(lambda: self.waiters(lock) == 1)
        waiting.result(WAIT_TIMEOUT)
        assert len(list(self.admin.notifies(timeout=WAIT_TIMEOUT, stop_after=1))) == 1
        self.admin.execute("UNLISTEN *")

    def test_a_release_wakes_one_of_many(self, recipe: PostgresRecipe, threads: Pool) -> None:
        lock = recipe("herd", ttl=LONG)
        lease = held(lock)
        second: list[Lease] = []
        for _ in range(6):
            threads.submit(lambda: second.append(held(separate(lock))))
        wait_for(lambda: self.waiters(lock) == 6)
        before = self.asked(lock)
        lease.release()
        wait_for(lambda: second)
        wait_for(lambda: self.waiters(lock) == 5)
        # Two statements each: the release, the waiter that is granted the lock, and the next waiter.
        assert self.asked(lock) - before <= 6
        for served in range(1, 7):
            wait_for(lambda count=served: len(second) == count)
            second[-1].release()

    def test_a_newcomer_does_not_overtake(self, recipe: PostgresRecipe) -> None:
        lock = recipe("line")
        assert isinstance(lock, InsertLock)
        self.admin.execute("SELECT pg_advisory_lock(%s::bigint)", [lock._queue_key])
        assert lock.acquire(blocking=False) is None
        assert lock.acquire(timeout=0.1) is None
        self.admin.execute("SELECT pg_advisory_unlock(%s::bigint)", [lock._queue_key])
        turn(lock)

    def test_names_alike_in_32_bits_do_not_share_a_queue(self, recipe: PostgresRecipe, threads: Pool) -> None:
        waited_for, free = "product 40779", "product 104238"
        assert advisory_key(waited_for, 4) == advisory_key(free, 4)
        self.is_free_beside_a_waiter(recipe(free, ttl=LONG), recipe(waited_for, ttl=LONG), threads)

    def test_the_queue_key_differs_from_the_advisory_key(self, recipe: PostgresRecipe, threads: Pool) -> None:
        lock = recipe("both kinds", ttl=LONG)
        self.is_free_beside_a_waiter(AdvisoryLock(recipe.conninfo, lock.name), lock, threads)

    def is_free_beside_a_waiter(self, free: Lock, lock: Lock, threads: Pool) -> None:
        with lock.hold():
            waiting = threads.submit(turn, lock)
            wait_for(lambda: self.waiters(lock) == 1)
            assert acquired(free, blocking=False).release() is True
        waiting.result(WAIT_TIMEOUT)

    def test_an_unanswered_grant_is_given_back(self, link: Link) -> None:
        link.lose_the_answer(b"INSERT INTO lock_grant")
        with pytest.raises(LockUnavailable, match="did not answer"):
            link.recipe("lost answer", ttl=LONG).acquire(blocking=False)
        assert link.lost == 1
        assert self.one("SELECT count(*) FROM lock_grant WHERE name = 'lost answer'") == 0

    @pytest.mark.parametrize("place", [1, 2, 3, 4], ids=["asks", "lines up", "listens", "asks in its turn"])
    def test_a_waiter_stopped_before_a_request_queues_again(
        self, recipe: PostgresRecipe, monkeypatch: Patch, place: int
    ) -> None:
        lock, ask = recipe("before a question", ttl=SHORT), PostgresSession.ask
        lease = held(recipe(lock.name, ttl=LONG))
        of_the_first: list[PostgresSession] = []

        def stand_still(self: PostgresSession, statement: str, *values: str, **options: Any) -> list[str | None]:
            if not of_the_first or self is of_the_first[0]:
                of_the_first.append(self)
                if len(of_the_first) == place + 1:  # The first statement pins the settings.
                    wait_for(lambda: session._ready(self._pgconn.socket, 0.0), "the server to end the session")
                    monkeypatch.undo()
                    assert lease.release() is True
            return ask(self, statement, *values, **options)

        monkeypatch.setattr(PostgresSession, "ask", stand_still)
        mine = held(lock)
        assert mine.fence > lease.fence  # type: ignore[operator]
        assert len(of_the_first) == place + 1
        mine.release()

    def test_a_waiter_past_its_deadline_is_not_granted(self, recipe: PostgresRecipe, monkeypatch: Patch) -> None:
        lock = recipe("in vain", ttl=SHORT)
        holder, sleep = held(recipe("in vain", ttl=LONG)), PostgresSession.sleep

        def stand_still(self: PostgresSession, seconds: float) -> bool:
            over = time.monotonic() + 1.5 * SHORT
            wait_for(lambda: session._ready(self._pgconn.socket, 0.0), "the server to end the session")
            wait_for(lambda: time.monotonic() > over, "its time to be over")
            assert holder.release() is True
            return sleep(self, seconds)

        monkeypatch.setattr(PostgresSession, "sleep", stand_still)
        assert lock.acquire(timeout=1.5 * SHORT) is None
        # A grant with the short TTL may come too late on a busy machine.
        acquired(recipe("in vain", ttl=LONG), timeout=0).release()

    def test_leases_are_renewed_together(self, recipe: PostgresRecipe) -> None:
        leases = [held(recipe(f"batch {place}", ttl=LONG)) for place in range(3)]
        leases[1].release()
        renewer = InsertRenewer(recipe.conninfo)
        assert renewer.renew(leases, 5.0) == [True, False, True]
        before = self.asked_by_renewal()
        assert renewer.renew(leases, 5.0) == [True, False, True]
        assert self.asked_by_renewal() - before == 1
        renewer.close()
        for lease in leases:
            lease.release()

    def test_a_failed_renewal_is_one_line_of_the_log(self, recipe: PostgresRecipe, caplog: Log) -> None:
        with recipe("unreached", ttl=LONG).hold() as lease:
            assert InsertRenewer("host=/nowhere").renew([lease], LONG) == [None]
        assert r"No such file or directory\n" in caplog.messages[0]  # libpq's advice is a second line
        assert "\n" not in caplog.messages[0]

    def asked_by_renewal(self) -> int:
        return sum("<lock renewal>LOG:" in line for line in self.postgres.child.log.read_text().splitlines())

    def test_an_expired_grant_is_not_extended(self, recipe: PostgresRecipe) -> None:
        lease = held(recipe("late", ttl=LONG, renew=False))
        self.admin.execute("UPDATE lock_grant SET expires = clock_timestamp() WHERE name = 'late'")
        with pytest.raises(LeaseLost):
            lease.extend()
        lease.release()

    def test_a_shorter_extension_does_not_shorten_the_grant(self, recipe: PostgresRecipe) -> None:
        lease = held(recipe("shorter", ttl=LONG))
        lease.extend(1.0)
        left = self.one("SELECT extract(epoch FROM expires - clock_timestamp()) FROM lock_grant WHERE name = 'shorter'")
        assert left > 50
        assert lease.remaining() > 50
        lease.release()
