"""The rungs whose clients are processes of their own: the search finds what breaks each, and it replays."""

from __future__ import annotations

import os

import pytest

from lab.claims.runs import replay
from lab.explorer.scheduler import Scheduler
from lab.explorer.search import Bounds, explore
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads.process import MemoryTrial, Program
from lab.workloads.registry import can_play, faults_of, new_experiment
from tests.lab.schedule_support import sandbox

__all__ = ["sandbox"]

pytestmark = pytest.mark.slow

SLUGS = ("thread-lock", "process-lock", "owner-is-thread-id")


@pytest.mark.parametrize("slug", SLUGS)
def test_the_search_finds_a_schedule_that_breaks_it_each_time(sandbox: Sandbox, slug: str) -> None:
    entry = LADDER[slug]
    found = [explore(new_experiment(entry, sandbox), Bounds(), faults_of(entry), entry.breaks) for _ in range(2)]
    assert found[0].run is not None
    assert found[1].run is not None
    assert (found[0].run.schedule, found[0].schedules) == (found[1].run.schedule, found[1].schedules)
    runs = [replay(slug, found[0].run.schedule, sandbox) for _ in range(20)]
    assert {run.broken for run in runs} == {entry.breaks}
    assert all(step.line for step in runs[0].steps if step.where == "process")
    assert can_play(entry)


def test_workers_of_one_program_share_its_process_lock(sandbox: Sandbox) -> None:
    """What the lock is good for: the schedule that breaks the thread lock leaves it in order."""
    broken = explore(new_experiment(LADDER["thread-lock"], sandbox), Bounds(), (), "one holder").run
    assert broken is not None
    run = replay("process-lock", broken.schedule, sandbox, clients=2, to_the_end=True)
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 8, "told yes": 2})


@pytest.mark.parametrize("slug", SLUGS)
def test_one_client_alone_sells(sandbox: Sandbox, slug: str) -> None:
    run = replay(slug, [], sandbox, clients=1, to_the_end=True)
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 9, "told yes": 1})


def test_who_crashes_is_killed_and_takes_no_later_step(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    forked: list[int] = []
    fork = Program.fork

    def remembering(self: Program, *arguments: object) -> object:
        forked.append((answer := fork(self, *arguments))[0])  # type: ignore[arg-type]
        return answer

    monkeypatch.setattr(Program, "fork", remembering)
    schedule = ["A", "A", "crash A"]
    run = replay("thread-lock", schedule, sandbox, faults=("crash",), to_the_end=True)
    assert run.ledger == {"received": 10, "left": 9, "told yes": 1}
    assert len(forked) == 2
    assert not any(_lives(pid) for pid in forked)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_error_of_a_worker_is_what_he_is_told(sandbox: Sandbox) -> None:
    """And no run hangs on it."""

    class Forgetful(MemoryTrial):
        def verdict(self, answers):  # type: ignore[no-untyped-def]
            return []

        def ledger(self, answers):  # type: ignore[no-untyped-def]
            return {}

        def prepare(self):  # type: ignore[no-untyped-def]
            jobs = super().prepare()
            self.sandbox.redis.delete("stock")
            return jobs

    run = Scheduler(Forgetful(LADDER["thread-lock"], sandbox, 1), lambda point: point.enabled[0]).play()
    assert run.answers["A"].startswith("TypeError")
