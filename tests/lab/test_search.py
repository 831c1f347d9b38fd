"""The search finds planted flaws, skips only equivalent schedules, and reports how far it went."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from lab.checkers.counter import CounterChecker
from lab.claims import verify
from lab.claims.finding import find
from lab.claims.runs import replay
from lab.explorer.run import Run
from lab.explorer.sample import sample
from lab.explorer.scheduler import Scheduler
from lab.explorer.search import Bounds, explore
from lab.explorer.terms import Fault, Invariant, Violation
from lab.explorer.trace_equivalence import TraceKey
from lab.ladder.catalogue import LADDER
from lab.sandbox.clock import TTL
from lab.sandbox.sandbox import Sandbox
from lab.workloads import sellers
from lab.workloads.lock import RedisLockWorkload
from lab.workloads.registry import faults_of, lock_experiment, new_experiment
from locking import Lock, RedisLock
from tests.lab.schedule_support import SellsNothing, broken_by, mutate_script

pytestmark = pytest.mark.slow


CHECK = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then\n    return 0\nend"
RENEWS_FOR_ANYBODY = "redis.call('SET', KEYS[1], ARGV[1])\nif true then\n    return 1\nend"
OFFERED_BEFORE = " and redis.call('EXISTS', KEYS[4]) == 0"
"""The part of acquire.lua that prevents a second offer to a waiter that ignored the first."""


@pytest.mark.parametrize(
    ("slug", "flaw", "faults", "broken", "choice"),
    [
        # Only the fault `tick` reveals a renewal after the release, because the holder goes on during the renewal.
        ("renewal", ("extend", CHECK, RENEWS_FOR_ANYBODY), ("tick",), "progress", "A's watchdog"),
        ("renewal", ("extend", CHECK, RENEWS_FOR_ANYBODY), ("late release", "expiry", "crash"), None, ""),
        # Only the fault `crash` reveals endless offers to a waiter that died asleep before the holder's release.
        ("fair", ("acquire", OFFERED_BEFORE, ""), ("crash",), "progress", "crash B"),
        ("fair", None, ("crash",), None, ""),
    ],
)
def test_a_flaw_in_a_script_is_found_by_its_fault(
    sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    slug: str,
    flaw: tuple[str, str, str] | None,
    faults: tuple[Fault, ...],
    broken: Invariant | None,
    choice: str,
) -> None:
    if flaw:
        mutate_script(*flaw, sandbox, monkeypatch)
    found = explore(new_experiment(LADDER[slug], sandbox), Bounds(preemptions=2, faults=1), faults, None)
    assert broken_by(found) == broken
    assert found.run is None or choice in found.run.schedule


class OwnLocks(RedisLockWorkload):
    """Each client has its own lock. At the end, it reports whether it still holds the lock."""

    def work(self, name: str, client: Any, lock: Lock) -> str:
        lease = RedisLock(client, name, ttl=TTL, clock=self.sandbox.clock).acquire()
        with self.inside(name):
            client.get("stock")
        return "lost" if lease.lost else "held"


class NoCheck(CounterChecker):
    def check(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        return []


@pytest.mark.parametrize(
    ("fault", "answers"), [("pause A", {"A": "lost", "B": "held"}), ("expiry", {"A": "held", "B": "held"})]
)
def test_only_a_paused_clients_watchdog_stops(sandbox: Sandbox, fault: str, answers: Mapping[str, str]) -> None:
    left = ["A", "B", fault]
    experiment = lock_experiment(OwnLocks, checker=NoCheck, exclusive=False)(LADDER["renewal"], sandbox, "AB")
    run = Scheduler(
        experiment, lambda point: left.pop(0) if left else point.enabled[0], faults=("pause", "expiry")
    ).play()
    assert (run.answers, run.schedule[:3]) == (answers, ["A", "B", fault])


@pytest.mark.parametrize(
    ("schedule", "choices"),
    [
        (["A", "tick A"], ["A", "A's watchdog", "B", "crash A", "crash B"]),
        (["A", "tick A", "A's watchdog"], ["A", "B", "crash A", "crash B", "expiry", "tick A"]),
        (["A", "tick A", "crash A"], ["B", "crash B", "late release"]),
    ],
    ids=["no other time passes before the renewal", "afterwards it does", "the watchdog dies with its client"],
)
def test_choices_around_a_renewal(sandbox: Sandbox, schedule: list[str], choices: list[str]) -> None:
    assert [choice.name for choice in replay("renewal", schedule, sandbox).choices] == choices


def test_a_client_tries_again_after_each_late_grant(sandbox: Sandbox) -> None:
    late = ("A", "expiry", "A", "A", "A", "B", "B", "late release", "B", "B")
    trace = replay("renewal", late, sandbox, clients=2, to_the_end=True)
    assert (trace.broken, trace.ledger) == (None, {"received": 10, "left": 8, "confirmed": 2})


def test_a_deep_search_says_where_it_ended_and_what_it_broke(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    line = verify.deep("file-lock", sandbox, schedules=5)
    assert [search["clients"] for search in line["deep"]] == [2], "no third client may come"
    line = verify.deep("guarded-update", sandbox, schedules=20)
    assert (line["verdict"], line["exhausted"]) == ("held", True), "the usual bounds"
    bounds = [(search["clients"], search["preemptions"], search["faults"]) for search in line["deep"]]
    assert bounds == [(2, 3, 2), (3, 2, 2)]
    extent = [(search["schedules"], search["sampled"], search["exhausted"]) for search in line["deep"]]
    assert extent == [(9, 0, True), (25, 5, False)]
    assert [search["completed"] for search in line["deep"]] == [5, 1]
    monkeypatch.setitem(sellers.STRATEGIES, "guarded-update", SellsNothing)
    line = verify.deep("guarded-update", sandbox, schedules=20)
    assert line["verdict"] == "broken"
    assert "A" in line["why"]
    assert not verify.reproduced(line)


def test_a_random_sample_follows_where_the_search_reaches_its_limit(sandbox: Sandbox) -> None:
    """When the search reaches its limit, a random sample follows. Here, only a larger sample finds a witness."""
    entry = LADDER["set-nx-ex"]
    found = find(entry, sandbox, Bounds(preemptions=2, faults=1, schedules=20), lambda done: None, 3)
    assert found.run is None
    assert (found.schedules, found.sampled, found.completed) == (25, 5, 1)
    experiment = new_experiment(entry, sandbox, 3)
    beyond = sample(experiment, Bounds(preemptions=2, faults=1), faults_of(entry), entry.breaks, 1000)
    assert broken_by(beyond) == entry.breaks


def outcomes(slug: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """Return all outcomes of a rung's schedules, and the number of schedules that were run."""
    experiment = new_experiment(LADDER[slug], sandbox)
    seen: set[str] = set()
    original = experiment.verdict

    def verdict(answers: Any) -> Any:
        seen.add(json.dumps([answers, dict(experiment.ledger(answers))], sort_keys=True))
        return original(answers)

    monkeypatch.setattr(experiment, "verdict", verdict)
    # Search for a break of `once`, which none of these rungs has. The search therefore runs all schedules.
    found = explore(experiment, Bounds(preemptions=2, faults=1), faults_of(LADDER[slug]), "once")
    assert found.exhausted
    return seen, found.schedules


@pytest.mark.parametrize(
    "slug", ["no-lock", "fence-on-write-only", "set-nx-ex", "watch-release", "subtract-in-sql", "lua"]
)
def test_pruning_leaves_out_no_outcome(sandbox: Sandbox, slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned, few = outcomes(slug, sandbox, monkeypatch)
    numbers = count()
    monkeypatch.setattr(TraceKey, "value", lambda self, *rest: next(numbers))
    everything, many = outcomes(slug, sandbox, monkeypatch)
    assert pruned == everything
    assert len(everything) > 1
    # On three rungs no two steps commute, so nothing can be pruned.
    assert few == many if slug in ("no-lock", "subtract-in-sql", "lua") else few < many


def test_a_worker_may_start_before_the_clients(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients have the same job, so of the clients only A starts first."""
    first = set()
    play = Scheduler.play

    def played(scheduler: Scheduler) -> Run:
        run = play(scheduler)
        first.add(run.schedule[0])
        return run

    monkeypatch.setattr(Scheduler, "play", played)
    explore(new_experiment(LADDER["lua-queue"], sandbox), Bounds(preemptions=0, faults=0), (), None)
    assert first == {"A", "W"}


def test_clients_that_wait_for_each_other_are_ended(sandbox: Sandbox) -> None:
    """No client keeps the lock of a killed one."""
    for _ in range(10):
        began = time.monotonic()
        assert replay("file-lock", [], sandbox, clients=3).broken is None
        assert time.monotonic() - began < 10
