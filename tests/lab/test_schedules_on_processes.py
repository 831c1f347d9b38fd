"""The rungs whose clients are separate processes."""

from __future__ import annotations

import os

import pytest

from lab.claims.runs import replay
from lab.explorer.scheduler import Scheduler
from lab.explorer.search import Bounds, explore
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads.process import MemoryWorkload, Program
from lab.workloads.registry import lock_experiment, new_experiment

pytestmark = pytest.mark.slow

SLUGS = ("thread-lock", "process-lock", "owner-is-thread-id")


def test_a_step_in_memory_names_its_line(sandbox: Sandbox) -> None:
    steps = replay("thread-lock", ["A", "A"], sandbox).steps
    assert all(step.line for step in steps if step.where == "process")


def test_workers_of_one_program_share_its_process_lock(sandbox: Sandbox) -> None:
    """Workers of one program share its process lock, so the schedule that breaks the thread lock breaks nothing."""
    broken = explore(new_experiment(LADDER["thread-lock"], sandbox), Bounds(), (), "one holder").run
    assert broken is not None
    run = replay("process-lock", broken.schedule, sandbox, clients=2, to_the_end=True)
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 8, "confirmed": 2})


@pytest.mark.parametrize("slug", SLUGS)
def test_one_client_alone_sells(sandbox: Sandbox, slug: str) -> None:
    run = replay(slug, [], sandbox, clients=1, to_the_end=True)
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 9, "confirmed": 1})


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


def test_an_error_of_a_worker_is_its_answer(sandbox: Sandbox) -> None:
    experiment = lock_experiment(WithoutStock)(LADDER["thread-lock"], sandbox, "A")
    experiment.verdict = lambda answers: []  # type: ignore[method-assign]
    run = Scheduler(experiment, lambda point: point.enabled[0]).play()
    assert run.answers["A"].startswith("TypeError")
