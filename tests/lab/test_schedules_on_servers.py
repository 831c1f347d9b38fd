"""The rungs that need several servers, or a ZooKeeper or etcd: a random sample breaks the flawed ones, no sound one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest
from kazoo.recipe.lock import Lock as KazooRecipe
from redis import RedisError

from lab.claims import verify, worker
from lab.claims.runs import Impossible, rehearse, replay
from lab.claims.witness import load
from lab.explorer.sample import sample
from lab.explorer.search import Bounds
from lab.ladder.catalogue import LADDER
from lab.sandbox import fleet
from lab.sandbox.fleet import Missing
from lab.sandbox.restarting import RestartingSandbox, sandbox_for
from lab.sandbox.sandbox import Kept, Sandbox
from lab.sandbox.watchdogs import SteppedWatchdog
from lab.workloads.base import Trial
from lab.workloads.registry import can_play, faults_of, new_experiment
from locking import zookeeper
from locking.etcd.lock import QueueTail
from locking.redis import nodes, redlock
from servers import zookeeper as zookeeper_server
from tests.lab.schedule_support import sandbox

__all__ = ["sandbox"]

pytestmark = pytest.mark.slow

FLAWED = (
    "one-primary-with-replicas",
    "redlock-no-fsync",
    "redlock-replicated-nodes",
    "redlock-clock-jump",
    "woken-means-mine",
    "watch-set-too-late",
)
SOUND = ("redlock", "zookeeper", "kazoo-recipe", "etcd")
ENOUGH = 300
"""Schedules among which there is one that breaks a flawed rung."""
SIZE = 50
"""Schedules that break no sound one."""


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """On a machine that tests every change, what is missing is a failure."""
    slug = request.node.callspec.params.get("slug") if hasattr(request.node, "callspec") else None
    needs_zookeeper = slug in ("woken-means-mine", "watch-set-too-late", "zookeeper", "kazoo-recipe")
    if os.environ.get("CI"):
        return
    if needs_zookeeper and not zookeeper_server.available():
        pytest.skip(f"ZooKeeper is not installed: {zookeeper_server.INSTALL}")
    if slug == "redlock-clock-jump" and fleet.libfaketime() is None:
        pytest.skip(fleet.NO_LIBFAKETIME)


def trial_of(slug: str, sandbox: Sandbox) -> Trial:
    assert not can_play(LADDER[slug])
    return new_experiment(LADDER[slug], sandbox)


@pytest.mark.parametrize("slug", FLAWED)
def test_a_sample_breaks_a_flawed_one_each_time(sandbox: Sandbox, slug: str) -> None:
    entry = LADDER[slug]
    found = [sample(trial_of(slug, sandbox), Bounds(), faults_of(entry), entry.breaks, ENOUGH) for _ in range(2)]
    assert found[0].run is not None
    assert found[1].run is not None
    assert (found[0].run.schedule, found[0].schedules) == (found[1].run.schedule, found[1].schedules)
    assert {replay(slug, found[0].run.schedule, sandbox).broken for _ in range(20)} == {entry.breaks}


@pytest.mark.parametrize("slug", SOUND)
def test_a_sample_breaks_no_sound_one(sandbox: Sandbox, slug: str) -> None:
    found = sample(trial_of(slug, sandbox), Bounds(), faults_of(LADDER[slug]), None, SIZE)
    assert (found.run, found.schedules, found.exhausted) == (None, SIZE, False)


@pytest.mark.parametrize("slug", SOUND)
def test_one_who_waits_sells_after_the_other(sandbox: Sandbox, slug: str) -> None:
    """B asks while A is inside."""
    schedule: list[str] = []
    while "A" not in (run := replay(slug, schedule, sandbox)).steps[-1].holders if schedule else True:
        schedule.append("A")
    for _ in range(4):
        schedule += ["B"] if "B" in {choice.name for choice in run.choices} else []
        run = replay(slug, schedule, sandbox)
    assert run.steps[-1].holders == ("A",)
    run = replay(slug, schedule, sandbox, to_the_end=True)
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 8, "told yes": 2})


@pytest.mark.parametrize("slug", SOUND)
@pytest.mark.parametrize("steps", range(1, 9, 2))
def test_who_dies_keeps_nobody_out(sandbox: Sandbox, slug: str, steps: int) -> None:
    run = replay(slug, ["A"] * steps + ["crash A"], sandbox, to_the_end=True, as_far_as_possible=True)
    assert run.broken is None
    assert run.ledger["told yes"] == 1 + ("crash A" not in run.schedule)


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "redlock": (redlock, "majority", lambda nodes: 2),
    "zookeeper": (zookeeper.ZooKeeperLock, "_look", lambda self, deadline: _Everywhere()),
    "kazoo-recipe": (KazooRecipe, "_get_predecessor", lambda self, node: None),
    "etcd": (QueueTail, "ahead", None),
}


class _Everywhere(list[str]):
    """A line in which everybody is the first."""

    def __contains__(self, node: object) -> bool:
        return True

    def index(self, *arguments: Any) -> int:
        return 0


@pytest.mark.parametrize("slug", MUTATIONS)
def test_a_flaw_in_a_sound_one_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, slug: str) -> None:
    where, name, instead = MUTATIONS[slug]
    monkeypatch.setattr(where, name, instead)
    found = sample(trial_of(slug, sandbox), Bounds(), faults_of(LADDER[slug]), "one holder", ENOUGH)
    assert found.run is not None


def test_a_lease_that_nobody_renews_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteppedWatchdog, "watch", lambda self, lease, renewer: None)
    found = sample(trial_of("etcd", sandbox), Bounds(), ("expiry",), None, ENOUGH)
    assert found.run is not None
    assert found.run.broken == "one holder"


@pytest.mark.parametrize("slug", ["woken-means-mine", "one-primary-with-replicas"])
def test_what_was_found_at_random_is_stored_without_what_it_does_not_take(sandbox: Sandbox, slug: str) -> None:
    entry = LADDER[slug]
    found = find(entry, sandbox, verify.bounds_of(entry), lambda done: None)
    witness = witness_of(entry, found)
    assert witness is not None
    assert breaks(witness, sandbox, 3) == 3
    again = rehearse(witness, sandbox)
    assert (again.preemptions, again.events) == (witness.preemptions, witness.events)
    for at in range(len(witness.schedule)):
        less = replace(witness, schedule=(*witness.schedule[:at], *witness.schedule[at + 1 :]))
        with suppress(Impossible):
            other = rehearse(less, sandbox)
            assert other.broken != witness.invariant or cost(other) >= cost(again)


def test_redlock_whose_nodes_keep_what_they_grant_survives_the_restart(sandbox: Sandbox) -> None:
    schedule = ["A", "N", "restart", "B", "B"]
    broken = replay("redlock-no-fsync", schedule, sandbox, to_the_end=True)
    fixed = replay("redlock", schedule, sandbox, faults=("restart",), to_the_end=True)
    assert (broken.broken, fixed.broken, fixed.ledger["told yes"]) == ("one holder", None, 2)


@pytest.fixture
def restarting(sandbox: Sandbox) -> RestartingSandbox:
    """The sandbox beside it whose Redis restarts."""
    found = sandbox_for(LADDER["lua"], sandbox)
    assert isinstance(found, RestartingSandbox)
    return found


def test_a_server_that_restarts_has_what_it_wrote_down_and_no_more(restarting: RestartingSandbox) -> None:
    restarting.empty()
    restarting.redis.set("before", 1)
    restarting.save_snapshot()
    restarting.redis.set("after", 1)
    before = restarting.redis.info("server")["process_id"]
    restarting.restart()
    assert (restarting.redis.exists("before"), restarting.redis.exists("after")) == (1, 0)
    assert restarting.redis.info("server")["process_id"] != before


FORGOTTEN = ["A", "restart"]
"""A has taken the last unit of the counter in Redis, which does not know it any more."""


def test_a_counter_that_has_lost_its_last_second_sells_twice(restarting: RestartingSandbox) -> None:
    run = replay("redis-loses-its-last-second", FORGOTTEN, restarting, to_the_end=True)
    assert (run.broken, run.ledger) == ("conserved", {"received": 1, "on hand": -1, "sold": 2})
    assert run.steps[-1].answers == {"A": "sold", "B": "sold"}


def test_it_sells_once_where_nothing_is_lost(restarting: RestartingSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same restart of a server that has written down all that it was told."""

    def restart(sandbox: RestartingSandbox, lose: Any = RestartingSandbox.restart) -> None:
        sandbox.save_snapshot()
        lose(sandbox)

    monkeypatch.setattr(RestartingSandbox, "restart", restart)
    run = replay("redis-loses-its-last-second", FORGOTTEN, restarting, to_the_end=True)
    assert (run.broken, run.ledger) == (None, {"received": 1, "on hand": 0, "sold": 1})
    assert run.steps[-1].answers == {"A": "sold", "B": "sold out"}


def test_a_guard_in_sql_refuses_what_such_a_counter_lets_through(restarting: RestartingSandbox) -> None:
    run = replay("lua", FORGOTTEN, restarting, to_the_end=True)
    assert (run.broken, run.ledger) == (None, {"received": 1, "on hand": 0, "sold": 1})
    assert run.steps[-1].answers == {"A": "sold", "B": "sold out"}


@pytest.mark.parametrize(("slug", "broken"), [("redis-loses-its-last-second", "conserved"), ("lua", None)])
def test_to_set_the_data_back_does_what_the_restart_does(
    sandbox: Sandbox, restarting: RestartingSandbox, slug: str, broken: str | None
) -> None:
    """Wherever in the first client's steps it comes, but that it hangs up on whoever asks next, and he asks again."""
    for steps in range(6):
        schedule = ["A"] * steps + ["restart"]
        ends = [replay(slug, schedule, where, to_the_end=True) for where in (sandbox, restarting)]
        assert (ends[0].broken, ends[0].ledger) == (ends[1].broken, ends[1].ledger)
        assert ends[0].broken == (broken if steps else None)


def test_a_sample_of_restarts_breaks_no_sound_stock(restarting: RestartingSandbox) -> None:
    found = sample(new_experiment(LADDER["lua"], restarting), Bounds(), faults_of(LADDER["lua"]), None, SIZE)
    assert (found.run, found.schedules) == (None, SIZE)


def test_a_command_tries_it_where_redis_restarts(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[type] = []

    def job_of(slug: str, where: Sandbox) -> dict[str, Any]:
        tried.append(type(where))
        return {}

    for job in ("check", "search", "deep", "control"):
        monkeypatch.setattr(verify, job, job_of)
    monkeypatch.setattr(worker, "_sandbox", [sandbox])
    for job in ("check", "control", "search", "deep"):
        worker.work(job, "lua")
    for slug in ("lua-queue", "redlock-no-fsync"):
        worker.work("check", slug)
    assert tried == [RestartingSandbox] * 2 + [Sandbox] * 4


def test_what_is_missing_is_named(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "libfaketime", lambda: None)
    with closing(fleet.Fleet()) as servers, pytest.raises(Missing, match="libfaketime is not installed"):
        servers.node("third", own_clock=True)
    monkeypatch.setattr(zookeeper_server, "available", lambda: False)
    with pytest.raises(Missing, match="apt-get install zookeeper"):
        trial_of("zookeeper", sandbox).begin()


def test_what_a_step_begins_ends_in_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client goes on trying to reach two nodes when he has voted, and these come back as the next step."""
    plain = nodes.open_connection

    def slowly(*arguments: Any) -> Any:
        try:
            return plain(*arguments)
        except RedisError:
            time.sleep(0.2)
            raise

    monkeypatch.setattr(nodes, "open_connection", slowly)
    witness = load("redlock-replicated-nodes")
    assert witness is not None
    assert rehearse(witness, sandbox).broken == witness.invariant


@pytest.fixture
def without_servers(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """The sandbox as it is before any rung has started servers on it."""
    kept: dict[str, Kept] = {}
    monkeypatch.setattr(sandbox, "_kept", kept)
    yield sandbox
    for each in kept.values():
        each.close()


@pytest.mark.parametrize("job", ["check", "search", "control"])
def test_a_worker_goes_on_without_what_is_missing(
    without_servers: Sandbox, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr(worker, "_sandbox", [without_servers])
    monkeypatch.setattr(fleet, "libfaketime", lambda: None)
    line = worker.work(job, "redlock-clock-jump")
    assert (line["verdict"], verify.reproduced(line)) == ("missing", False)
    assert "libfaketime is not installed" in line["missing"]
    assert without_servers.local_waits
    assert worker.work("check", "redlock-replicated-nodes")["verdict"] == "broken"
