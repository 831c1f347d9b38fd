"""The rungs whose lock is in Postgres: the flawed ones are broken by what the search finds, the others by nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from lab.claims.runs import replay
from lab.explorer.actor import Actor
from lab.explorer.scheduler import Scheduler, SchedulingPoint, TooLong
from lab.explorer.search import Bounds, explore
from lab.ladder.catalogue import LADDER
from lab.sandbox.hooks import StoppingSession
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.watchdogs import SteppedWatchdog
from lab.workloads.postgres import USERS
from lab.workloads.registry import can_play, faults_of, new_experiment
from locking.postgres import AdvisoryLock, insert, row
from locking.postgres.session import PostgresSession
from tests.lab.schedule_support import sandbox
from tests.waiting import wait_for

__all__ = ["sandbox"]

pytestmark = pytest.mark.slow

FLAWED = ("for-update-without-the-row", "insert-without-owner-and-expiry")
SOUND = ("lock-table-for-update", "lock-table-insert", "postgres-advisory-lock")


@pytest.mark.parametrize("slug", FLAWED)
def test_the_search_finds_a_schedule_that_breaks_it_each_time(sandbox: Sandbox, slug: str) -> None:
    entry = LADDER[slug]
    found = [explore(new_experiment(entry, sandbox), Bounds(), faults_of(entry), entry.breaks) for _ in range(2)]
    assert found[0].run is not None
    assert found[1].run is not None
    assert (found[0].run.schedule, found[0].schedules) == (found[1].run.schedule, found[1].schedules)
    assert {replay(slug, found[0].run.schedule, sandbox).broken for _ in range(20)} == {entry.breaks}
    assert entry.fixed_by is not None
    fixed = replay(
        entry.fixed_by,
        found[0].run.schedule,
        sandbox,
        faults=faults_of(entry),
        to_the_end=True,
        as_far_as_possible=True,
    )
    assert fixed.broken is None


@pytest.mark.parametrize("slug", SOUND)
def test_no_schedule_within_the_bounds_breaks_a_sound_one(sandbox: Sandbox, slug: str) -> None:
    entry = LADDER[slug]
    found = explore(new_experiment(entry, sandbox), Bounds(), faults_of(entry), None)
    assert (found.run, found.exhausted) == (None, True)
    assert found.schedules > 20
    assert can_play(entry)


def test_schedules_are_as_many_each_time(sandbox: Sandbox) -> None:
    entry = LADDER["lock-table-for-update"]
    once, again = (explore(new_experiment(entry, sandbox), Bounds(), faults_of(entry), None) for _ in range(2))
    assert once.schedules == again.schedules


MUTATIONS = {
    "lock-table-for-update": (row, "LOCK_ROW", " FOR UPDATE{nowait}", "", "one holder"),
    "lock-table-insert": (insert, "INSERT", "expires <= clock_timestamp()", "expires <= 'infinity'", "one holder"),
    "for-ever": (
        insert,
        "INSERT",
        "clock_timestamp() + $3 * interval '1 second'",
        "'infinity'::timestamptz + $3 * interval '0'",
        "progress",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_flaw_in_a_sound_one_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, statement, part, by, broken = MUTATIONS[name]
    before: str = getattr(module, statement)
    assert part in before
    # What is granted is looked at before the row is won: without that the conflict alone decides.
    after = before.replace(part, by).replace("AND expires > clock_timestamp())", "AND expires > 'infinity')")
    monkeypatch.setattr(module, statement, after if broken == "one holder" else before.replace(part, by))
    entry = LADDER[name if name in LADDER else "lock-table-insert"]
    run = explore(new_experiment(entry, sandbox), Bounds(), faults_of(entry), None).run
    assert run is not None
    assert run.broken == broken


def test_a_release_without_its_owner_check_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a third client: one is late with his release, one holds the lock by now, one gets it too early."""
    before = insert.DELETE
    monkeypatch.setattr(insert, "DELETE", before.replace("owner = $2", "$2::text IS NOT NULL"))
    assert before != insert.DELETE
    entry = LADDER["lock-table-insert"]
    run = explore(new_experiment(entry, sandbox, 3), Bounds(), ("late release",), None).run
    assert run is not None
    assert run.broken == "one holder"


def test_a_lease_that_nobody_renews_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteppedWatchdog, "watch", lambda self, lease, renewer: None)
    run = explore(new_experiment(LADDER["lock-table-insert"], sandbox), Bounds(), ("expiry",), None).run
    assert run is not None
    assert run.broken == "one holder"


def test_a_waiter_is_waked_by_the_release_and_not_by_time(sandbox: Sandbox) -> None:
    """He listens from his fourth step on: ask, line up, listen, ask again."""
    run = replay("lock-table-insert", ["A", "B", "B", "B", "B"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger["told yes"]) == (None, 2)
    assert not [step for step in run.steps if step.forced]


def test_a_waiter_takes_over_from_one_who_died_when_the_time_is_over(sandbox: Sandbox) -> None:
    run = replay("lock-table-insert", ["A", "crash A"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger["told yes"]) == (None, 1)
    # Almost to the end of it, for those who poll; then over it.
    assert [step.choice for step in run.steps if step.forced] == ["time", "time"]


@pytest.mark.parametrize("slug", SOUND)
def test_three_clients_stand_in_line(sandbox: Sandbox, slug: str) -> None:
    """C waits in the server for B, who waits for A."""
    schedule = ["A"] * 2 + ["B"] * 2 + ["C"] * 2
    run = replay(slug, schedule[: 6 if slug == "lock-table-for-update" else 2], sandbox, clients=3, to_the_end=True)
    assert (run.broken, run.ledger["told yes"]) == (None, 3)


@pytest.mark.parametrize("slug", SOUND)
def test_who_waits_in_the_server_may_die(sandbox: Sandbox, slug: str) -> None:
    waits: dict[str, Any] = {"lock-table-for-update": ["A", "A", "B", "B"], "postgres-advisory-lock": ["A", "B"]}
    schedule = [*waits.get(slug, ["A", "B", "B", "B", "B"]), "crash B"]
    run = replay(slug, schedule, sandbox, to_the_end=True)
    assert (run.broken, run.ledger["told yes"]) == (None, 1)


def test_sessions_stop_only_while_a_trial_runs(sandbox: Sandbox) -> None:
    trial = new_experiment(LADDER["postgres-advisory-lock"], sandbox)
    trial.begin()
    assert {module.PostgresSession for module in USERS} == {StoppingSession}
    with AdvisoryLock(sandbox.conninfo, "of nobody").hold() as lease:
        lease.check()
    trial.end()
    assert {module.PostgresSession for module in USERS} == {PostgresSession}


def test_a_run_that_takes_too_long_takes_no_further_step_and_ends_what_waits_in_postgres(sandbox: Sandbox) -> None:
    todo = ["A", "A", "A", "B", "B", "B"]
    waiting = []

    def choose(point: SchedulingPoint) -> str:
        if todo:
            return todo.pop(0)
        waiting.extend(point.enabled)
        controller.until = 0.0
        return "A"

    trial = new_experiment(LADDER["lock-table-for-update"], sandbox)
    controller = Scheduler(trial, choose, seconds=60.0)
    with pytest.raises(TooLong):
        controller.play()
    assert waiting == ["A"], "as B waits in Postgres for him"
    theirs = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert sandbox.observer.execute(theirs).rowcount == 0
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
    """A connection beside which autovacuum has locked the table `busy`, for as long as nobody stands up to it."""
    with psycopg.connect(sandbox.conninfo, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum_naptime = 1")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(BUSY_TABLE)
        held = f"SELECT FROM pg_locks WHERE relation = 'busy'::regclass AND {AUTOVACUUM.format('pg_locks.pid')}"
        try:
            wait_for(lambda: connection.execute(held).rowcount, "autovacuum to come", timeout=60)
            yield connection
        finally:
            connection.execute("ALTER SYSTEM RESET autovacuum_naptime")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("DROP TABLE busy")  # Autovacuum gives way after deadlock_timeout.
            connection.execute("DROP FUNCTION stays")


def test_who_waits_for_autovacuum_goes_on_by_himself_and_who_waits_for_a_client_is_blocked(
    sandbox: Sandbox, busy: psycopg.Connection[Any]
) -> None:
    busy.execute("SELECT pg_advisory_lock(1)")
    for asks, blocked in (("BEGIN; LOCK TABLE busy IN SHARE MODE", False), ("SELECT pg_advisory_lock(1)", True)):
        with closing(psycopg.connect(sandbox.conninfo, autocommit=True)) as his:
            his.execute("SET deadlock_timeout = '600s'")  # Until then autovacuum does not give way to him.
            actor = Actor("A", str, SimpleQueue(), sandbox.clock, SteppedWatchdog())
            actor.session = SimpleNamespace(pid=his.info.backend_pid)
            his.pgconn.send_query(asks.encode())
            waits = f"SELECT WHERE cardinality(pg_blocking_pids({actor.session.pid})) = 1"
            wait_for(lambda waits=waits: busy.execute(waits).rowcount, "him to wait")  # type: ignore[misc]
            assert sandbox.is_blocked(actor) is blocked
            assert busy.execute(waits).rowcount
            his.cancel()
