"""Locks without a server: the steps that take, wait for and free the lock, and clients that are processes."""

from __future__ import annotations

import os

import pytest

from lab.claims.runs import replay
from lab.explorer.scheduler import Scheduler
from lab.explorer.search import Bounds, explore
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER
from lab.sandbox import local_locks
from lab.sandbox.sandbox import Sandbox
from lab.workloads.process import MemoryWorkload, Program
from lab.workloads.registry import lock_experiment, new_experiment

LOCKS = {"lock-inside-the-transaction": "the lock in its memory", "file-lock": "the lock on its file"}
"""Stock rungs with a local lock, and how a step names the lock."""


def shown(run: Trace, actor: str) -> list[str]:
    return [step.does for step in run.steps if step.actor == actor]


@pytest.mark.parametrize("slug", LOCKS)
def test_a_run_shows_who_takes_waits_for_and_frees_the_lock(sandbox: Sandbox, slug: str) -> None:
    asks, frees = f"asks for {LOCKS[slug]}", f"frees {LOCKS[slug]}"
    schedule: list[str] = []
    for actor in ("A", "B"):
        while asks not in shown(replay(slug, schedule, sandbox), actor):
            schedule.append(actor)
    run = replay(slug, schedule, sandbox, to_the_end=True)
    for actor in ("A", "B"):
        assert shown(run, actor).index(asks) < shown(run, actor).index(frees)
    assert all(step.file for step in run.steps if step.does == asks)
    waits = [step.does for step in run.steps if step.blocked == ("B",)]
    assert waits[0] == asks
    assert frees not in waits
    assert waits == [asks, *shown(run, "A")[shown(run, "A").index(asks) + 1 :][: len(waits) - 1]]


def test_the_order_of_unlock_and_commit_is_what_breaks_the_one_and_not_the_other(sandbox: Sandbox) -> None:
    inside, around = (shown(replay(slug, (), sandbox, to_the_end=True), "A") for slug in LOCKS)
    assert inside.index("frees the lock in its memory") < inside.index("COMMIT")
    (saves,) = (step for step in around if step.startswith("WITH"))  # This statement commits, too.
    assert around.index("frees the lock on its file") > around.index(saves)


def schedules(slug: str, sandbox: Sandbox) -> int:
    bounds = Bounds(preemptions=1, faults=0)
    return explore(new_experiment(LADDER[slug], sandbox), bounds, (), "once").schedules


@pytest.mark.parametrize(("slug", "added"), [("lock-inside-the-transaction", False), ("file-lock", True)])
def test_the_steps_of_a_lock_add_schedules_only_before_its_first_client(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, slug: str, added: bool
) -> None:
    """Without the first step of `file-lock`, A always takes the lock first. Other steps of a lock add no schedules."""
    with_steps = schedules(slug, sandbox)
    monkeypatch.setattr(local_locks, "stop_before", lambda step: None)
    without = schedules(slug, sandbox)
    assert (without == 1, with_steps > without, with_steps > 1) == (added, added, True)


@pytest.mark.slow
def test_a_crashed_worker_is_killed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    forked: list[int] = []
    fork = Program.fork

    def remembering(self: Program, *arguments: object) -> object:
        forked.append((answer := fork(self, *arguments))[0])  # type: ignore[arg-type]
        return answer

    monkeypatch.setattr(Program, "fork", remembering)
    run = replay("thread-lock", ["A", "A", "crash A"], sandbox, faults=("crash",), to_the_end=True)
    assert run.ledger == {"received": 10, "left": 9, "confirmed": 1}
    assert len(forked) == 2
    for pid in forked:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class WithoutStock(MemoryWorkload):
    def prepare(self):  # type: ignore[no-untyped-def]
        jobs = super().prepare()
        self.sandbox.redis.delete("stock")
        return jobs


@pytest.mark.slow
def test_an_error_of_a_worker_is_its_answer(sandbox: Sandbox) -> None:
    experiment = lock_experiment(WithoutStock)(LADDER["thread-lock"], sandbox, "A")
    experiment.verdict = lambda answers: []  # type: ignore[method-assign]
    run = Scheduler(experiment, lambda point: point.enabled[0]).play()
    assert run.answers["A"].startswith("TypeError")
