"""Sessions of the locks on Postgres: waiters of a process share a few sessions and pass them on."""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from locking import LockTimeout, LockUnavailable
from locking.local import has_queue
from locking.postgres import AdvisoryLock, InsertLock, RowLock, shared_sessions
from locking.postgres import session as session_module
from locking.postgres.session import PostgresSession
from locking.postgres.shared_sessions import SharedSessions, _spare
from servers.postgres import Postgres, connect
from tests.locking.conformance import LONG
from tests.locking.postgres_support import (
    PostgresRecipe,
    PostgresTraces,
    conninfo_of,
    running_postgres,
    separate,
)
from tests.locking.support import Patch, Pool, acquired, in_fork, run_threads
from tests.waiting import WAIT_TIMEOUT, wait_for

WAITERS = 20
FEW = 4
"""Maximum sessions of a process: the holder's, that of the waiter at the server, and two that change hands."""

KINDS = [AdvisoryLock, RowLock, InsertLock]
SESSION_KINDS = [AdvisoryLock, RowLock]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Yield a server that accepts twelve sessions."""
    with running_postgres("--max_connections=15") as running:
        yield running


@pytest.fixture
def admin(server: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with connect(server.folder, database=server.database) as connection:
        yield connection


class TestSharedSessions(PostgresTraces):
    @pytest.fixture(autouse=True)
    def _server(self, server: Postgres, admin: psycopg.Connection[Any], tmp_path: Path) -> Iterator[None]:
        self.postgres, self.admin, self.cells = server, admin, tmp_path
        yield
        assert not _spare

    def made(self, kind: Any, name: str, **options: Any) -> Any:
        name = f"{name} {kind.__name__}"
        if kind is InsertLock:
            options = {"ttl": LONG, **options}
        return PostgresRecipe(kind, conninfo_of(self.postgres), self.cells)(name, **options)

    def lined_up(self, lock: Any, count: int) -> None:
        wait_for(lambda: self.waiters(lock) == count, f"{count} threads to wait")

    @pytest.mark.parametrize("kind", KINDS)
    def test_many_waiters_share_few_and_the_holder_releases(self, kind: Any) -> None:
        lock, turns = self.made(kind, "crowd"), list[int]()
        most = [0]

        def wait() -> None:
            with lock.hold(timeout=2 * WAIT_TIMEOUT) as lease:
                turns.append(lease.fence or 0)
                if len(turns) % 5 == 0:
                    most.append(self.connections(lock.name))

        with ThreadPoolExecutor(WAITERS) as threads:
            lease = acquired(lock)
            waiting = [threads.submit(wait) for _ in range(WAITERS)]
            self.lined_up(lock, WAITERS)
            assert self.connections(lock.name) <= 2
            assert lease.release() is True
            for one in waiting:
                one.result(WAIT_TIMEOUT)
        assert (len(turns), turns) == (WAITERS, sorted(turns))
        assert max(most) <= FEW
        wait_for(lambda: self.connections(lock.name) == 0, "all sessions to be closed")

    @pytest.mark.parametrize("kind", KINDS)
    def test_those_without_a_turn_are_refused_in_time(self, kind: Any) -> None:
        lock = self.made(kind, "refused")

        def wait() -> float:
            began = time.monotonic()
            with pytest.raises(LockTimeout), lock.hold(timeout=0.5):
                pytest.fail("two hold it")
            return time.monotonic() - began

        with lock.hold():
            took = run_threads(*[wait] * WAITERS)
            assert min(took) >= 0.5
            assert max(took) < 0.5 * WAITERS / 2, "one after the other they would need twice as long"
            assert self.waiters(lock) == 0

    @pytest.mark.parametrize(
        ("kind", "processes"), [(RowLock, False), (AdvisoryLock, True), (InsertLock, True)], ids=str
    )
    def test_waiters_are_served_in_order(self, kind: Any, processes: bool) -> None:
        """Threads are served in order even by RowLock, whose server serves other processes in any order."""
        lock, served = self.made(kind, "order"), list[int]()

        def wait(place: int) -> None:
            with (separate(lock) if processes else lock).hold(timeout=WAIT_TIMEOUT):
                served.append(place)

        with ThreadPoolExecutor(8) as threads, lock.hold():
            for place in range(8):
                threads.submit(wait, place)
                self.lined_up(lock, place + 1)
        assert served == list(range(8))

    def test_other_locks_do_not_wait_for_its_waiters(self, threads: Pool) -> None:
        locks = [self.made(kind, "one of two") for kind in KINDS]
        locks.append(self.made(AdvisoryLock, "the other"))
        leases = [acquired(lock) for lock in locks]
        waiting = [threads.submit(lock.acquire, timeout=WAIT_TIMEOUT) for lock in locks]
        for lock in locks:
            self.lined_up(lock, 1)
        for lease, other in zip(leases, waiting, strict=True):
            assert not other.done()
            assert lease.release() is True
            assert other.result(WAIT_TIMEOUT).release() is True

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shared", [True, False])
    def test_turns_need_no_new_sessions(self, kind: Any, shared: bool, monkeypatch: Patch) -> None:
        lock, opened = self.made(kind, f"shared {shared}"), list[str]()
        open_one = shared_sessions.PostgresSession

        def count(*args: Any, **options: Any) -> PostgresSession:
            opened.append(args[1])
            return open_one(*args, **options)

        monkeypatch.setattr(shared_sessions, "PostgresSession", count)
        if not shared:
            monkeypatch.setattr(SharedSessions, "give_back", lambda self, session: session.close())

        ended: list[bool] = []

        def take_turns() -> None:
            for _ in range(8):
                with lock.hold(timeout=WAIT_TIMEOUT):
                    wait_for(lambda: len(ended) == 3 or has_queue(lock._sessions._queue), "another thread to wait")
            ended.append(True)

        run_threads(*[take_turns] * 4)
        assert (len(opened) < 16) is shared

    @pytest.fixture
    def given_back(self, monkeypatch: Patch) -> threading.Event:
        """An event that waiters await before they take a session; set at first. Tests clear it around a release.

        Otherwise a waiter whose turn comes before the session is returned would open another session.
        """
        event, take = threading.Event(), SharedSessions.take
        event.set()

        def take_later(*arguments: Any, **options: Any) -> PostgresSession:
            assert event.wait(WAIT_TIMEOUT)
            return take(*arguments, **options)

        monkeypatch.setattr(SharedSessions, "take", take_later)
        return event

    @pytest.mark.parametrize("kind", SESSION_KINDS)
    def test_a_released_lease_does_not_touch_the_next_holder(self, kind: Any, given_back: threading.Event) -> None:
        lock = self.made(kind, "handed on")
        first: Any = acquired(lock)
        session = weakref.ref(first.session)
        with ThreadPoolExecutor(2) as threads:
            second, third = self.queue_up(lock, threads, 2)
            given_back.clear()
            first.release()
            given_back.set()
            held = second.result(WAIT_TIMEOUT)
            wait_for(lambda: session() not in _spare, "the next waiter to use the session")
            self.lined_up(lock, 1)
            assert (first.release(), lock._release(first), first.lost) == (False, False, False)
            assert held.release() is True
            last = [third.result(WAIT_TIMEOUT)]
            assert last[0].session is session()
            assert (first.release(), lock._release(first)) == (False, False)
            assert lock.acquire(blocking=False) is None
        del third
        # Dropping a lease ends its session, even if an older lease that still exists had used that session.
        with pytest.warns(ResourceWarning, match="dropped"):
            last.clear()
        assert session() is None
        acquired(lock, timeout=WAIT_TIMEOUT).release()

    def queue_up(self, lock: Any, threads: ThreadPoolExecutor, count: int) -> list[Any]:
        waiting = []
        for place in range(count):
            waiting.append(threads.submit(lock.acquire, timeout=WAIT_TIMEOUT))
            self.lined_up(lock, place + 1)
        return waiting

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_server_that_hangs_is_reported_to_all_at_once(self, kind: Any, monkeypatch: Patch, threads: Pool) -> None:
        opened = partial(PostgresSession, answer_timeout=1.0)
        monkeypatch.setattr(shared_sessions, "PostgresSession", opened)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            lock = kind(f"host=127.0.0.1 port={silent.getsockname()[1]} user=lock dbname=lock", "hangs")
            began = time.monotonic()
            for waiting in [threads.submit(lock.acquire, timeout=WAIT_TIMEOUT) for _ in range(8)]:
                with pytest.raises(LockUnavailable):
                    waiting.result(WAIT_TIMEOUT)
            assert time.monotonic() - began < 4.0, "one after the other they would need 8 s"

    @pytest.mark.parametrize("kind", SESSION_KINDS)
    def test_a_look_at_a_released_lease_does_not_end_that_of_the_next_holder(
        self, kind: Any, given_back: threading.Event, monkeypatch: Patch, threads: Pool
    ) -> None:
        """Checking a released lease does not end the next lease of its session.

        A thread checks the first lease during its release, and goes on when the session has a new answer.
        """
        lock = self.made(kind, "looked at")
        first: Any = acquired(lock)
        session, ended = first.session, cast(property, PostgresSession.ended).fget
        watched = session._pgconn.socket
        looks, go_on, looked = (threading.Event() for _ in range(3))

        def look_late(self: PostgresSession) -> bool:
            if threading.current_thread() is looker:
                looks.set()
                go_on.wait(1.0)
            return bool(ended(self))

        def wait_for_answer(socket_of: int, *rest: Any) -> None:
            wait(socket_of, *rest)
            if armed and socket_of == watched:
                armed.clear()
                go_on.set()
                assert looked.wait(WAIT_TIMEOUT)

        armed, wait = list[bool](), session_module._wait
        looker = threading.Thread(target=lambda: (first.remaining(), looked.set()))
        monkeypatch.setattr(PostgresSession, "ended", property(look_late))
        monkeypatch.setattr(session_module, "_wait", wait_for_answer)
        second, third = self.queue_up(lock, threads, 2)
        looker.start()
        assert looks.wait(WAIT_TIMEOUT)
        given_back.clear()
        first.release()
        given_back.set()
        held = second.result(WAIT_TIMEOUT)
        self.lined_up(lock, 1)
        wait_for(lambda: session not in _spare, "the next waiter to use the session")
        armed.append(True)
        held.release()
        last = third.result(WAIT_TIMEOUT)
        looker.join(WAIT_TIMEOUT)
        assert last.session is session
        assert last.lost is False
        assert last.release() is True

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_spare_session_that_was_ended_is_replaced(self, kind: Any, monkeypatch: Patch) -> None:
        lock = self.made(kind, "ended")
        with lock._sessions.turn(0.0):
            for ends_at_once in (True, False):
                spare = PostgresSession(lock._sessions._conninfo, lock.name)
                lock._sessions.give_back(spare)
                assert spare in _spare
                if ends_at_once:
                    spare.close()
                else:  # as if it ended just after its socket was checked
                    self.terminate(lock.name)
                    wait_for(lambda: self.connections(lock.name) == 0)
                    monkeypatch.setattr(PostgresSession, "ended", False)
                lease = lock._ask(lock._clock())
                monkeypatch.undo()
                assert spare.ended
                assert lease.release() is True

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_interrupt_on_the_way_out_gives_the_grant_back(self, kind: Any, monkeypatch: Patch) -> None:
        lock = self.made(kind, "way out")

        def interrupt(self: SharedSessions) -> None:
            if not has_queue(self._queue):
                monkeypatch.undo()
                raise KeyboardInterrupt

        monkeypatch.setattr(SharedSessions, "_close_unwanted", interrupt)
        with suppress(KeyboardInterrupt):
            lock.acquire(timeout=WAIT_TIMEOUT)
            pytest.fail("it was not interrupted")
        acquired(lock, timeout=WAIT_TIMEOUT).release()

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_forked_child_has_its_own_queue_and_sessions(self, kind: Any, threads: Pool) -> None:
        lock = self.made(kind, "fork")
        lease = acquired(lock)
        (waiting,) = self.queue_up(lock, threads, 1)
        lock._sessions.give_back(PostgresSession(lock._sessions._conninfo, lock.name))
        assert len(_spare) == 1

        def in_child() -> str:
            assert not _spare
            with lock.hold(timeout=WAIT_TIMEOUT):
                return "held"

        child = threads.submit(in_fork, in_child)
        self.lined_up(lock, 2)
        assert len(_spare) == 1
        assert lease.release() is True
        assert waiting.result(WAIT_TIMEOUT).release() is True
        assert child.result(WAIT_TIMEOUT) == "held"

    def test_a_session_that_cannot_leave_the_queue_serves_nobody_else(self, monkeypatch: Patch, threads: Pool) -> None:
        lock, ask, refused = self.made(InsertLock, "stays"), PostgresSession.ask, list[PostgresSession]()

        def refuse(self: PostgresSession, statement: str, *values: str, **options: Any) -> list[str | None]:
            if "pg_advisory_unlock" not in statement or refused:
                return ask(self, statement, *values, **options)
            refused.append(self)
            return ask(self, "SELECT 1 / 0")

        monkeypatch.setattr(PostgresSession, "ask", refuse)
        lease = acquired(lock)
        first, second = self.queue_up(lock, threads, 2)
        lease.release()
        held = first.result(WAIT_TIMEOUT)
        self.lined_up(lock, 1)
        assert refused[0]._closed
        assert held.release() is True
        assert second.result(WAIT_TIMEOUT).release() is True
