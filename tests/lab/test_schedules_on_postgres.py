"""Rungs whose lock is in Postgres: the search finds planted flaws. `test_schedules.py` searches the sound rungs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from lab.claims.runs import replay
from lab.explorer.actor import Actor
from lab.explorer.run import SchedulingPoint
from lab.explorer.scheduler import Scheduler, TooLong
from lab.explorer.search import Bounds, explore
from lab.explorer.terms import Invariant
from lab.ladder.catalogue import LADDER
from lab.sandbox.hooks import StoppingSession
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.watchdogs import SteppedWatchdog
from lab.workloads.postgres import USERS
from lab.workloads.registry import faults_of, new_experiment
from locking.postgres import AdvisoryLock, insert, row
from locking.postgres.session import PostgresSession
from tests.lab.schedule_support import broken_by
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SOUND = ("lock-table-for-update", "lock-table-insert", "postgres-advisory-lock")


CONFLICT = ("expires <= clock_timestamp()", "expires <= 'infinity'")
UNEXPIRED = ("AND expires > clock_timestamp())", "AND expires > 'infinity')")
"""The check for an unexpired grant. Without it, only the conflict of the INSERT decides."""
EXPIRY = ("clock_timestamp() + $3 * interval '1 second'", "'infinity'::timestamptz + $3 * interval '0'")
FLAWS: dict[str, tuple[Any, str, Sequence[tuple[str, str]], Invariant]] = {
    "lock-table-for-update": (row, "LOCK_ROW", [(" FOR UPDATE{nowait}", "")], "one holder"),
    "lock-table-insert": (insert, "INSERT", [CONFLICT, UNEXPIRED], "one holder"),
    "never expires": (insert, "INSERT", [EXPIRY], "progress"),
    # A late release of the first of three clients frees the second one's lock for the third.
    "no owner check": (insert, "DELETE", [("owner = $2", "$2::text IS NOT NULL")], "one holder"),
}
"""For each flaw: the module, the name of its statement, the parts to replace, and the invariant that breaks."""


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_in_a_sound_rung_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    module, name, parts, broken = FLAWS[flaw]
    statement: str = getattr(module, name)
    for part, by in parts:
        assert part in statement
        statement = statement.replace(part, by)
    monkeypatch.setattr(module, name, statement)
    entry = LADDER[flaw if flaw in LADDER else "lock-table-insert"]
    three = flaw == "no owner check"
    faults = ("late release",) if three else faults_of(entry)
    found = explore(new_experiment(entry, sandbox, 3 if three else None), Bounds(), faults, None)
    assert broken_by(found) == broken


def test_a_lease_that_is_not_renewed_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteppedWatchdog, "watch", lambda self, lease, renewer: None)
    experiment = new_experiment(LADDER["lock-table-insert"], sandbox)
    assert broken_by(explore(experiment, Bounds(), ("expiry",), None)) == "one holder"


def test_a_waiter_is_woken_by_the_release_or_takes_over_from_a_crashed_holder_after_the_ttl(sandbox: Sandbox) -> None:
    # B queries the lock, joins the queue, listens and queries again.
    run = replay("lock-table-insert", ["A", "B", "B", "B", "B"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger["confirmed"]) == (None, 2)
    assert not [step for step in run.steps if step.forced]
    run = replay("lock-table-insert", ["A", "crash A"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger["confirmed"]) == (None, 1)
    # Time passes twice: until just before the expiry, for polling waiters, then beyond it.
    assert [step.choice for step in run.steps if step.forced] == ["time", "time"]


@pytest.mark.parametrize("slug", SOUND)
def test_three_clients_form_a_line(sandbox: Sandbox, slug: str) -> None:
    schedule = ["A"] * 2 + ["B"] * 2 + ["C"] * 2
    schedule = schedule[: 6 if slug == "lock-table-for-update" else 2]
    run = replay(slug, schedule, sandbox, clients=3, to_the_end=True)
    assert (run.broken, run.ledger["confirmed"]) == (None, 3)


def test_sessions_stop_only_in_an_experiment(sandbox: Sandbox) -> None:
    experiment = new_experiment(LADDER["postgres-advisory-lock"], sandbox)
    experiment.begin()
    assert {module.PostgresSession for module in USERS} == {StoppingSession}
    with AdvisoryLock(sandbox.conninfo, "of no actor").hold() as lease:
        lease.check()
    experiment.end()
    assert {module.PostgresSession for module in USERS} == {PostgresSession}


def test_a_run_that_takes_too_long_leaves_no_backend(sandbox: Sandbox) -> None:
    schedule = ["A", "A", "A", "B", "B", "B"]
    enabled = []

    def choose(point: SchedulingPoint) -> str:
        if schedule:
            return schedule.pop(0)
        enabled.extend(point.enabled)
        scheduler.until = 0.0
        return "A"

    scheduler = Scheduler(new_experiment(LADDER["lock-table-for-update"], sandbox), choose, seconds=60.0)
    with pytest.raises(TooLong):
        scheduler.play()
    assert enabled == ["A"], "as B waits for A in Postgres"
    others = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert sandbox.observer.execute(others).rowcount == 0
    assert replay("lock-table-for-update", [], sandbox, to_the_end=True).broken is None


AUTOVACUUM = "EXISTS (SELECT FROM pg_stat_activity WHERE pid = {} AND backend_type = 'autovacuum worker')"
BUSY_TABLE = f"""
CREATE TABLE busy (n integer);
CREATE FUNCTION stays(n integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF {AUTOVACUUM.format("pg_backend_pid()")} THEN PERFORM pg_sleep(600); END IF;
    RETURN n;
END $$;
CREATE INDEX ON busy (public.stays(n));
ALTER TABLE busy SET (autovacuum_analyze_threshold = 0, autovacuum_analyze_scale_factor = 0);
INSERT INTO busy VALUES (1);
"""


@pytest.fixture
def busy(sandbox: Sandbox) -> Iterator[psycopg.Connection[Any]]:
    """A connection, and a table that autovacuum keeps locked until a client waits for the table."""
    held = f"SELECT FROM pg_locks WHERE relation = 'busy'::regclass AND {AUTOVACUUM.format('pg_locks.pid')}"
    with psycopg.connect(sandbox.conninfo, autocommit=True) as connection:
        for statement in ("ALTER SYSTEM SET autovacuum_naptime = 1", "SELECT pg_reload_conf()", BUSY_TABLE):
            connection.execute(statement)
        try:
            wait_for(lambda: connection.execute(held).rowcount, "autovacuum to come", timeout=60)
            yield connection
        finally:
            # DROP TABLE waits for deadlock_timeout, then cancels autovacuum.
            reset = ("ALTER SYSTEM RESET autovacuum_naptime", "SELECT pg_reload_conf()")
            for statement in (*reset, "DROP TABLE busy", "DROP FUNCTION stays"):
                connection.execute(statement)


def test_a_wait_for_autovacuum_does_not_count_as_blocked(sandbox: Sandbox, busy: psycopg.Connection[Any]) -> None:
    busy.execute("SELECT pg_advisory_lock(1)")
    for statement, blocked in (
        ("BEGIN; LOCK TABLE busy IN SHARE MODE", False),
        ("SELECT pg_advisory_lock(1)", True),
    ):
        with closing(psycopg.connect(sandbox.conninfo, autocommit=True)) as client:
            client.execute("SET deadlock_timeout = '600s'")  # Until then, autovacuum is not cancelled.
            actor = Actor("A", str, SimpleQueue(), sandbox.clock, SteppedWatchdog())
            actor.session = SimpleNamespace(pid=client.info.backend_pid)
            client.pgconn.send_query(statement.encode())
            waits = f"SELECT WHERE cardinality(pg_blocking_pids({actor.session.pid})) = 1"
            wait_for(lambda waits=waits: busy.execute(waits).rowcount, "the client to wait")  # type: ignore[misc]
            assert sandbox.is_blocked(actor) is blocked
            assert busy.execute(waits).rowcount
            client.cancel()
