"""The search: it finds new flaws in sound rungs, leaves out nothing that matters, and says how far it went."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
from django.db import connection, transaction

from inventory.counters import whole
from inventory.errors import SoldOut
from inventory.models import StockItem
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies.base import Strategy
from inventory.strategies.locks import stock_lock
from lab.claims import verify
from lab.claims.runs import replay
from lab.explorer.sample import sample
from lab.explorer.scheduler import Scheduler
from lab.explorer.search import Bounds, explore
from lab.explorer.terms import Fault, Invariant
from lab.explorer.trace_equivalence import TraceKey
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads import sellers
from lab.workloads.base import TTL, Broken, Trial
from lab.workloads.lock import LockTrial
from lab.workloads.registry import faults_of, new_experiment
from locking import Lock, RedisLock
from tests.lab.schedule_support import mutant, sandbox, searched

__all__ = ["sandbox"]

pytestmark = pytest.mark.slow


# New flaws


class AroundTheTransaction(Strategy):
    """Lock, look, subtract, commit, unlock: the lock is all that protects it, and it is enough."""

    name = "around"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with stock_lock(order.skus[0]).hold(60), transaction.atomic(durable=True):
            self.sell(order, save)
        return Placement.COMMITTED

    def sell(self, order: OrderRequest, save: Save) -> None:
        (item,) = order.items
        left = StockItem.objects.get(sku=item.sku).on_hand
        if left < item.quantity:
            raise SoldOut(item.sku, wanted=item.quantity, left=left)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE inventory_stockitem SET on_hand = %s WHERE sku = %s", [left - 1, item.sku])
        save_one(order, save)


class InsideTheTransaction(AroundTheTransaction):
    """The same, but it unlocks before it commits."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True), ExitStack() as leases:
            leases.enter_context(stock_lock(order.skus[0]).hold(60))
            self.sell(order, save)
        return Placement.COMMITTED


@pytest.mark.parametrize(("strategy", "broken"), [(AroundTheTransaction, None), (InsideTheTransaction, "conserved")])
def test_a_commit_after_the_unlock_is_found(
    sandbox: Sandbox, strategy: Callable[[], Strategy], broken: Invariant | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sellers.STRATEGIES, "redis-lock", strategy)
    trial = new_experiment(LADDER["redis-lock"], sandbox)
    found = explore(trial, Bounds(preemptions=2, faults=0), (), None)
    assert (found.run and found.run.broken) == broken


AGAIN = """redis.call('SET', KEYS[1], ARGV[1])
if true then
    return 1
end"""
"""What takes the lock for its holder again, and for ever, whether or not it is still his."""


@pytest.mark.parametrize(
    ("events", "broken"), [(("tick",), "progress"), (("late release", "expiry", "crash"), None)], ids=["tick", "others"]
)
def test_a_renewal_that_comes_after_the_release_is_found(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, events: tuple[Fault, ...], broken: Invariant | None
) -> None:
    """It takes a watchdog whose command is on the way while its holder goes on."""
    owner = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then\n    return 0\nend"
    mutant("extend", owner, AGAIN, sandbox, monkeypatch)
    found = explore(new_experiment(LADDER["renewal"], sandbox), Bounds(preemptions=2, faults=1), events, None)
    assert (found.run and found.run.broken) == broken
    assert found.run is None or "A's watchdog" in found.run.schedule


class Apart(LockTrial):
    """Everybody has a lock of his own, and says whether he still has it."""

    def enters(self, name: str) -> None:
        self.inside.append(name)

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        return []

    def work(self, name: str, client: Any, lock: Lock) -> str:
        lease = RedisLock(client, name, ttl=TTL, clock=self.sandbox.clock).acquire()
        assert lease is not None
        with self.at_work(name):
            client.get("stock")
        return "lost" if lease.lost else "held"


@pytest.mark.parametrize(
    ("event", "answers"),
    [("pause A", {"A": "lost", "B": "held"}), ("expiry", {"A": "held", "B": "held"})],
)
def test_the_watchdogs_of_those_who_are_not_paused_get_their_turns(
    sandbox: Sandbox, event: str, answers: Mapping[str, str]
) -> None:
    todo = ["A", "B", event]
    trial = Apart(LADDER["renewal"], sandbox, 2)
    run = Scheduler(trial, lambda point: todo.pop(0) if todo else point.enabled[0], faults=("pause", "expiry")).play()
    assert run.answers == answers
    assert run.schedule[:3] == ["A", "B", event]


def test_while_a_watchdog_is_about_to_renew_no_other_time_passes(sandbox: Sandbox) -> None:
    trace = replay("renewal", ["A", "tick A"], sandbox)
    assert [choice.name for choice in trace.choices] == ["A", "A's watchdog", "B", "crash A", "crash B"]
    assert trace.choices[1].does == "extend.lua: lock:{stock} lock:{stock}:fence lock:{stock}:waiters"
    trace = replay("renewal", ["A", "tick A", "A's watchdog"], sandbox)
    assert [choice.name for choice in trace.choices] == ["A", "B", "crash A", "crash B", "expiry", "tick A"]
    assert (trace.steps[-1].actor, trace.steps[-1].choice) == ("A", "A's watchdog")


def test_the_watchdog_of_who_dies_dies_with_him(sandbox: Sandbox) -> None:
    trace = replay("renewal", ["A", "tick A", "crash A"], sandbox)
    assert [choice.name for choice in trace.choices] == ["B", "crash B", "late release"]


def test_who_is_told_twice_to_try_again_does(sandbox: Sandbox) -> None:
    """Each of the two events that a deep search allows may make a grant come too late."""
    late = ("A", "expiry", "A", "A", "A", "B", "B", "late release", "B", "B")
    trace = replay("renewal", late, sandbox, clients=2, to_the_end=True)
    assert (trace.broken, trace.ledger) == (None, {"received": 10, "left": 8, "told yes": 2})


def test_where_no_third_client_may_come_a_deep_search_asks_none(sandbox: Sandbox) -> None:
    said = verify.deep("file-lock", sandbox, schedules=5)
    assert [search["clients"] for search in said["deep"]] == [2]


def test_a_deep_search_goes_further_and_says_where_it_ended(sandbox: Sandbox) -> None:
    said = verify.deep("guarded-update", sandbox, schedules=20)
    assert (said["verdict"], said["exhausted"]) == ("held", True), "the usual bounds"
    bounds = [(search["clients"], search["preemptions"], search["events"]) for search in said["deep"]]
    assert bounds == [(2, 3, 2), (3, 2, 2)]
    extent = [(search["schedules"], search["sampled"], search["exhausted"]) for search in said["deep"]]
    assert extent == 2 * [(25, 5, False)]
    assert [search["completed"] for search in said["deep"]] == [1, 0]


def test_where_a_search_in_order_gives_up_a_random_one_goes_on(sandbox: Sandbox) -> None:
    """What breaks it is beyond the first twenty schedules in order, and one of a few hundred draws meets it."""
    entry = LADDER["set-nx-ex"]
    found = find(entry, sandbox, Bounds(preemptions=2, faults=1, schedules=20), lambda done: None, 3)
    assert found.run is None
    assert (found.schedules, found.sampled, found.completed) == (25, 5, 1)
    beyond = sample(
        new_experiment(entry, sandbox, 3), Bounds(preemptions=2, faults=1), faults_of(entry), entry.breaks, 1000
    )
    assert beyond.run is not None
    assert beyond.run.broken == entry.breaks


def test_a_deep_search_that_breaks_a_rung_says_so(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sellers.STRATEGIES, "redis-lock", InsideTheTransaction)
    said = verify.deep("redis-lock", sandbox, schedules=300)
    assert said["verdict"] == "broken"
    assert "A" in said["why"]
    assert not verify.reproduced(said)


def test_a_wrong_comparison_in_the_stock_script_is_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = whole.SCRIPTS["take"]
    wrong = plain.replace("< line[2]", "<= line[2]")
    assert wrong != plain
    sandbox.redis.script_load(wrong)
    monkeypatch.setitem(whole.SCRIPTS, "take", wrong)
    found = searched("lua", sandbox)
    assert found.run is not None
    assert found.run.broken == "no false refusal"


# The search itself


@contextmanager
def without_pruning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    numbers = count()
    with monkeypatch.context() as patch:
        patch.setattr(TraceKey, "value", lambda self, *rest: next(numbers))
        yield


def outcomes(slug: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """Every end that the schedules of a rung come to, and how many schedules it took to see them."""
    trial: Trial = new_experiment(LADDER[slug], sandbox)
    seen: set[str] = set()
    plain = trial.verdict

    def noted(answers: Any) -> Any:
        seen.add(json.dumps([answers, dict(trial.ledger(answers))], sort_keys=True))
        return plain(answers)

    monkeypatch.setattr(trial, "verdict", noted)
    # No rung of these breaks it, so all are run.
    found = explore(trial, Bounds(preemptions=2, faults=1), faults_of(LADDER[slug]), "once")
    assert found.exhausted
    return seen, found.schedules


@pytest.mark.parametrize(
    "slug", ["no-lock", "fence-on-write-only", "set-nx-ex", "watch-release", "subtract-in-sql", "lua"]
)
def test_pruning_leaves_out_no_outcome(sandbox: Sandbox, slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned, few = outcomes(slug, sandbox, monkeypatch)
    with without_pruning(monkeypatch):
        everything, many = outcomes(slug, sandbox, monkeypatch)
    assert pruned == everything
    assert len(everything) > 1
    # In these two each step is in the way of every other.
    assert few == many if slug in ("no-lock", "subtract-in-sql") else few < many


def test_three_who_wait_for_each_other_are_cleared_away(sandbox: Sandbox) -> None:
    """Who waits in this process for one that is killed must not take what that one held, and keep it."""
    for _ in range(10):
        began = time.monotonic()
        assert replay("file-lock", [], sandbox, clients=3).broken is None
        assert time.monotonic() - began < 10


def test_no_other_thread_is_stopped(sandbox: Sandbox) -> None:
    """Whoever is no actor passes every hook."""
    began = time.monotonic()
    assert stepping_client(sandbox.redis_url).set("somebody", "else")
    with sandbox.as_default(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert time.monotonic() - began < 5
