"""Two rungs on a Postgres with a standby, one asynchronous and one synchronous, and the steps of a failover."""

from __future__ import annotations

import pytest

from lab.claims.runs import replay
from lab.claims.verify import bounds_of
from lab.explorer.sample import sample
from lab.ladder.catalogue import LADDER
from lab.ladder.stock.sync_standby_failover import SyncStandbyFailover
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import faults_of, new_experiment
from tests.lab.rung_support import steps

pytestmark = pytest.mark.slow

ASYNC, SYNC = "async-standby-failover", "sync-standby-failover"
SOLD_TWICE = {"received": 1, "on hand": 0, "sold": 1, "confirmed": 2}
SOLD_ONCE = {**SOLD_TWICE, "confirmed": 1}


def committed(slug: str, sandbox: Sandbox) -> list[str]:
    """Return the schedule in which A runs alone until it has sent COMMIT."""
    schedule: list[str] = []
    while not schedule or replay(slug, schedule, sandbox).steps[-1].does != "COMMIT":
        schedule.append("A")
    return schedule


def test_nothing_is_lost_once_the_standby_has_received_it(sandbox: Sandbox) -> None:
    """Negative control: after the standby has received the commit, a failover loses nothing."""
    run = replay(ASYNC, [*committed(ASYNC, sandbox), "S", "failover"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger) == (None, SOLD_ONCE)


def test_the_commit_waits_for_the_standby_and_the_same_failover_loses_nothing(sandbox: Sandbox) -> None:
    schedule = committed(SYNC, sandbox)
    waiting = replay(SYNC, schedule, sandbox)
    assert (waiting.steps[-1].blocked, "A" in waiting.steps[-1].answers) == (("A",), False)
    run = replay(SYNC, [*schedule, "failover"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger) == (None, SOLD_ONCE)
    received = replay(SYNC, [*schedule, "S"], sandbox)
    assert (received.steps[-1].blocked, received.steps[-1].answers["A"]) == ((), "sold")
    run = replay(SYNC, [*schedule, "S", "failover"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger) == (None, SOLD_ONCE)
    assert run.steps[-1].answers == {"A": "sold", "B": "sold out", "S": "up to date"}


@pytest.mark.parametrize("schedule", ["crash S", "A*9, crash S", "A*9, crash A", "A*9, S, crash B"])
def test_a_crash_keeps_nobody_from_buying(sandbox: Sandbox, schedule: str) -> None:
    run = replay(SYNC, steps(schedule), sandbox, to_the_end=True, as_far_as_possible=True)
    assert (run.broken, run.ledger["sold"]) == (None, 1)


@pytest.mark.parametrize(("slug", "size", "broken"), [(ASYNC, 100, "conserved"), (SYNC, 10, None)])
def test_a_sample_breaks_the_one_and_not_the_other(sandbox: Sandbox, slug: str, size: int, broken: str | None) -> None:
    entry = LADDER[slug]
    found = sample(new_experiment(entry, sandbox), bounds_of(entry), faults_of(entry), entry.breaks, size)
    assert (found.run and found.run.broken) == broken


def test_without_its_setting_the_sound_rung_breaks(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncStandbyFailover, "_place", LADDER[ASYNC].code._place)  # type: ignore[attr-defined]
    run = replay(SYNC, [*committed(SYNC, sandbox), "failover"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger) == ("conserved", SOLD_TWICE)
    assert run.why == "2 sales were confirmed, but the stock fell from 1 to 0."
