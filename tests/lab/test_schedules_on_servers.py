"""Rungs that need their own servers: a random sample of schedules breaks each flawed one, and no sound one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kazoo.recipe.lock import Lock as KazooRecipe
from redis import RedisError

from lab.claims import stress, verify, worker
from lab.claims.finding import breaks, cost, find, restarting_sandbox, witness_of
from lab.claims.runs import Impossible, rehearse, replay
from lab.claims.verify import bounds_of
from lab.claims.witness import load
from lab.explorer.sample import sample
from lab.explorer.search import Bounds, Found
from lab.ladder.catalogue import LADDER
from lab.ladder.stock.sync_standby_failover import SyncStandbyFailover
from lab.sandbox import fleet
from lab.sandbox.restarting import RestartingSandbox
from lab.sandbox.sandbox import Resource, Sandbox
from lab.workloads.registry import can_play, faults_of, new_experiment
from locking import zookeeper
from locking.etcd.lock import QueueTail
from locking.redis import nodes, redlock
from servers import zookeeper as zookeeper_server
from tests.lab.schedule_support import steps

pytestmark = pytest.mark.slow

FLAWED = (
    "one-primary-with-replicas",
    "redlock-no-fsync",
    "redlock-replicated-nodes",
    "redlock-clock-jump",
    "woken-means-mine",
    "watch-set-too-late",
)
QUORUMS = ("zookeeper-quorum", "etcd-quorum")
SOUND = ("redlock", "zookeeper", "kazoo-recipe", "etcd", *QUORUMS)
ENOUGH = 300
"""Number of random schedules within which a flawed rung breaks."""
SIZE = 50
"""Number of random schedules tried on a sound rung; none may break it."""


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Skip rungs whose servers are not installed. In CI, their tests fail instead."""
    slug = request.node.callspec.params.get("slug") if hasattr(request.node, "callspec") else None
    needs_zookeeper = slug in (
        "woken-means-mine",
        "watch-set-too-late",
        "zookeeper",
        "kazoo-recipe",
        "zookeeper-quorum",
    )
    if os.environ.get("CI"):
        return
    if needs_zookeeper and not zookeeper_server.available():
        pytest.skip(f"ZooKeeper is not installed: {zookeeper_server.INSTALL}")
    if slug == "redlock-clock-jump" and fleet.libfaketime() is None:
        pytest.skip(fleet.NO_LIBFAKETIME)


def sampled(slug: str, sandbox: Sandbox, *, size: int = ENOUGH, **changed: Any) -> Found:
    entry = LADDER[slug]
    assert not can_play(entry)
    options = {"faults": faults_of(entry), "goal": entry.breaks, **changed}
    return sample(new_experiment(entry, sandbox), Bounds(), size=size, **options)


@pytest.mark.parametrize("slug", FLAWED)
def test_a_sample_finds_the_same_witness_again(sandbox: Sandbox, slug: str) -> None:
    once, again = sampled(slug, sandbox), sampled(slug, sandbox)
    assert (once.run.schedule, once.schedules) == (again.run.schedule, again.schedules)
    assert {replay(slug, once.run.schedule, sandbox).broken for _ in range(20)} == {LADDER[slug].breaks}


@pytest.mark.parametrize("slug", SOUND)
def test_a_sample_breaks_no_sound_rung(sandbox: Sandbox, slug: str) -> None:
    found = sampled(slug, sandbox, size=SIZE)
    assert (found.run, found.schedules, found.exhausted) == (None, SIZE, False)


class _AlwaysFirst(list[str]):
    """A queue in which each client believes it is the first."""

    def __contains__(self, node: object) -> bool:
        return True

    def index(self, *arguments: Any) -> int:
        return 0


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "redlock": (redlock, "majority", lambda nodes: 2),
    "zookeeper": (zookeeper.ZooKeeperLock, "_look", lambda self, deadline: _AlwaysFirst()),
    "kazoo-recipe": (KazooRecipe, "_get_predecessor", lambda self, node: None),
    "etcd": (QueueTail, "ahead", None),
}


@pytest.mark.parametrize("slug", MUTATIONS)
def test_a_flaw_in_a_sound_rung_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, slug: str) -> None:
    monkeypatch.setattr(*MUTATIONS[slug])
    assert sampled(slug, sandbox, goal="one holder").run is not None


@pytest.mark.parametrize("slug", ["woken-means-mine", "one-primary-with-replicas"])
def test_a_random_witness_is_shortened(sandbox: Sandbox, slug: str) -> None:
    entry = LADDER[slug]
    witness = witness_of(entry, find(entry, sandbox, verify.bounds_of(entry), lambda done: None))
    assert breaks(entry, witness, sandbox, 3) == 3
    again = rehearse(entry, witness, sandbox)
    assert (again.preemptions, again.faults) == (witness.preemptions, witness.faults)
    for at in range(len(witness.schedule)):
        less = replace(witness, schedule=(*witness.schedule[:at], *witness.schedule[at + 1 :]))
        with suppress(Impossible):
            other = rehearse(entry, less, sandbox)
            assert other.broken != witness.invariant or cost(other) >= cost(again)


@pytest.mark.parametrize("slug", ["one-primary-with-replicas", *QUORUMS])
def test_the_failover_that_makes_a_second_holder_does_not_in_a_quorum(sandbox: Sandbox, slug: str) -> None:
    """After this failover, a single server grants A's lock to a second holder. A quorum does not.

    The server that granted the lock to A fails. Another server has not received the grant.
    """
    schedule = ["A"]
    while "A" not in (run := replay(slug, schedule, sandbox)).steps[-1].holders:
        schedule.append("A")
    schedule += ["failover"]
    for _ in range(5):
        run = replay(slug, schedule, sandbox, faults=("failover",))
        schedule += ["B"] if run.broken is None and "B" in {choice.name for choice in run.choices} else []
    run = replay(slug, schedule, sandbox, faults=("failover",))
    if slug in QUORUMS:
        assert run.steps[-1].holders == ("A",)
        assert "B" not in {choice.name for choice in run.choices}
        run = replay(slug, schedule, sandbox, faults=("failover",), to_the_end=True)
        assert (run.broken, run.ledger) == (None, {"received": 10, "left": 8, "confirmed": 2})
    else:
        assert run.broken == "one holder"


def test_what_a_step_begins_ends_in_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for each attempt to connect that it began, even if the attempt fails after the end of the vote."""
    original = nodes.open_connection

    def slowly(*arguments: Any) -> Any:
        try:
            return original(*arguments)
        except RedisError:
            time.sleep(0.2)
            raise

    monkeypatch.setattr(nodes, "open_connection", slowly)
    witness = load("redlock-replicated-nodes")
    assert rehearse(LADDER["redlock-replicated-nodes"], witness, sandbox).broken == witness.invariant


# A Redis that restarts

# In these tests, A takes the last unit from the counter in Redis, and a restart of Redis loses this write.


@pytest.fixture
def restarting(sandbox: Sandbox) -> RestartingSandbox:
    found = restarting_sandbox(LADDER["lua"], sandbox)
    assert isinstance(found, RestartingSandbox)
    return found


def test_a_restart_without_loss_breaks_nothing(restarting: RestartingSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control, too: in the other tests, a restart loses data."""
    found = sample(new_experiment(LADDER["lua"], restarting), Bounds(), faults_of(LADDER["lua"]), None, SIZE)
    assert (found.run, found.schedules) == (None, SIZE), "restarts break no sound stock, although they lose data"
    lose = RestartingSandbox.restart
    monkeypatch.setattr(RestartingSandbox, "restart", lambda self: (self.save_snapshot(), lose(self)))
    before = restarting.redis.info("server")["process_id"]
    run = replay("redis-loses-its-last-second", ["A", "restart"], restarting, to_the_end=True)
    assert restarting.redis.info("server")["process_id"] != before
    assert (run.broken, run.ledger) == (None, {"received": 1, "on hand": 0, "sold": 1})
    assert run.steps[-1].answers == {"A": "sold", "B": "sold out"}


@pytest.mark.parametrize(
    ("slug", "most", "broken"), [("redis-loses-its-last-second", 5, "conserved"), ("lua", 3, None)]
)
def test_restoring_the_snapshot_has_the_outcome_of_a_restart(
    sandbox: Sandbox, restarting: RestartingSandbox, slug: str, most: int, broken: str | None
) -> None:
    """Restoring the snapshot has the same outcome as a real restart, except that a restart drops a connection."""
    for number in range(most + 1):
        schedule = ["A"] * number + ["restart"]
        runs = [replay(slug, schedule, where, to_the_end=True) for where in (sandbox, restarting)]
        assert (runs[0].broken, runs[0].ledger) == (runs[1].broken, runs[1].ledger)
        assert runs[0].broken == (broken if number else None)


def test_commands_restart_redis_except_in_a_search(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[type] = []

    def job(slug: str, where: Sandbox) -> dict[str, Any]:
        tried.append(type(where))
        return {}

    for name in ("check", "search", "deep"):
        monkeypatch.setattr(verify, name, job)
    monkeypatch.setattr(stress, "stress", job)
    monkeypatch.setattr(worker, "_sandbox", [sandbox])
    for name in ("check", "stress", "search", "deep"):
        worker.work(name, "lua")
    for slug in ("lua-queue", "redlock-no-fsync"):
        worker.work("check", slug)
    assert tried == [RestartingSandbox] * 2 + [Sandbox] * 4


# What is not installed


@pytest.fixture
def without_servers(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """The sandbox, as it is before any rung has started servers in it."""
    resources: dict[str, Resource] = {}
    monkeypatch.setattr(sandbox, "_resources", resources)
    yield sandbox
    for each in resources.values():
        each.close()


@pytest.mark.parametrize("job", ["check", "search", "stress"])
def test_a_worker_goes_on_without_a_missing_library(
    without_servers: Sandbox, monkeypatch: pytest.MonkeyPatch, job: worker.JobName
) -> None:
    monkeypatch.setattr(worker, "_sandbox", [without_servers])
    monkeypatch.setattr(fleet, "libfaketime", lambda: None)
    line = worker.work(job, "redlock-clock-jump")
    assert (line["verdict"], verify.reproduced(line)) == ("missing", False)
    assert "libfaketime is not installed" in line["missing"]
    assert without_servers.local_waits
    assert worker.work("check", "redlock-replicated-nodes")["verdict"] == "broken"


# A Postgres with a standby, asynchronous or synchronous, and the steps of a failover


ASYNC, SYNC = "async-standby-failover", "sync-standby-failover"
SOLD_TWICE = {"received": 1, "on hand": 0, "sold": 1, "confirmed": 2}
SOLD_ONCE = {**SOLD_TWICE, "confirmed": 1}


def committed(slug: str, sandbox: Sandbox) -> list[str]:
    """Return the schedule in which A runs alone until it has sent COMMIT."""
    schedule: list[str] = []
    while not schedule or replay(slug, schedule, sandbox).steps[-1].does != "COMMIT":
        schedule.append("A")
    return schedule


def test_the_commit_waits_for_the_standby_and_the_same_failover_loses_nothing(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls: without its setting, the sound rung breaks; once the standby has the commit, neither does."""
    run = replay(ASYNC, [*committed(ASYNC, sandbox), "S", "failover"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger) == (None, SOLD_ONCE)
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
    monkeypatch.setattr(SyncStandbyFailover, "_place", LADDER[ASYNC].code._place)  # type: ignore[attr-defined]
    run = replay(SYNC, [*committed(SYNC, sandbox), "failover"], sandbox, to_the_end=True)
    assert (run.broken, run.ledger) == ("conserved", SOLD_TWICE)
    assert run.why == "2 sales were confirmed, but the stock fell from 1 to 0."


@pytest.mark.parametrize("schedule", ["crash S", "A*9, crash S", "A*9, crash A", "A*9, S, crash B"])
def test_a_crash_keeps_nobody_from_buying(sandbox: Sandbox, schedule: str) -> None:
    run = replay(SYNC, steps(schedule), sandbox, to_the_end=True, as_far_as_possible=True)
    assert (run.broken, run.ledger["sold"]) == (None, 1)


@pytest.mark.parametrize(("slug", "size", "broken"), [(ASYNC, 100, "conserved"), (SYNC, 10, None)])
def test_a_sample_breaks_the_one_and_not_the_other(sandbox: Sandbox, slug: str, size: int, broken: str | None) -> None:
    entry = LADDER[slug]
    found = sample(new_experiment(entry, sandbox), bounds_of(entry), faults_of(entry), entry.breaks, size)
    assert (found.run and found.run.broken) == broken
