"""Locks without a server: a run shows the steps that take, wait for and free the lock."""

from __future__ import annotations

import pytest

from lab.claims.runs import replay
from lab.explorer.search import Bounds, explore
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER
from lab.sandbox import local_locks
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import new_experiment

LOCKS = {
    "thread-lock": "the lock in its memory",
    "lock-inside-the-transaction": "the lock in its memory",
    "file-lock": "the lock on its file",
}
"""Rungs with a local lock, and how a step names the lock."""
STOCK = ("lock-inside-the-transaction", "file-lock")


def shown(run: Trace, actor: str) -> list[str]:
    return [step.does for step in run.steps if step.actor == actor]


@pytest.mark.parametrize(
    "slug", [pytest.param(slug, marks=pytest.mark.slow if slug == "thread-lock" else ()) for slug in LOCKS]
)
def test_a_run_shows_who_takes_and_frees_the_lock(sandbox: Sandbox, slug: str) -> None:
    run = replay(slug, (), sandbox, to_the_end=True)
    for actor in ("A", "B"):
        steps = shown(run, actor)
        taken, freed = steps.index(f"asks for {LOCKS[slug]}"), steps.index(f"frees {LOCKS[slug]}")
        assert taken < freed
        assert all(step.file for step in run.steps if step.does == steps[taken])


@pytest.mark.parametrize("slug", STOCK)
def test_a_run_shows_who_waits_for_the_lock(sandbox: Sandbox, slug: str) -> None:
    asks, frees = f"asks for {LOCKS[slug]}", f"frees {LOCKS[slug]}"
    schedule: list[str] = []
    for actor in ("A", "B"):
        while asks not in shown(replay(slug, schedule, sandbox), actor):
            schedule.append(actor)
    run = replay(slug, schedule, sandbox, to_the_end=True)
    waits = [step.does for step in run.steps if step.blocked == ("B",)]
    assert waits[0] == asks
    assert frees not in waits
    assert waits == [asks, *shown(run, "A")[shown(run, "A").index(asks) + 1 :][: len(waits) - 1]]


def test_the_order_of_unlock_and_commit_is_what_breaks_the_one_and_not_the_other(sandbox: Sandbox) -> None:
    inside, around = (shown(replay(slug, (), sandbox, to_the_end=True), "A") for slug in STOCK)
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
