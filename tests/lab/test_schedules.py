"""The scheduler, the search, and the witnesses (the schedules that break rungs), on rungs in a plain sandbox."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import uuid4

import pytest

from inventory import stock
from inventory.strategies import advisory_lock
from lab.claims import verify, witness
from lab.claims.runs import Impossible, rehearse, replay
from lab.explorer.search import Bounds, explore
from lab.explorer.terms import Invariant, Violation
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads import sellers
from lab.workloads.registry import BUILDERS, can_play, new_experiment
from locking import ThreadLock
from tests.factories import slow
from tests.lab.schedule_support import broken_by, searched, slow_but_for_each_kind

FLAWED = [slug for slug, entry in LADDER.items() if entry.claim == "flawed" and can_play(entry)]
QUICK = [
    *("renewal", "re-entrant", "fence", "redis-lock", "guarded-update", "lua"),
    *("lock-table-for-update", "lock-table-insert", "postgres-advisory-lock"),
]
"""Sound rungs whose search takes seconds. `manage.py ladder --verify` searches all sound rungs."""
ONE_PREEMPTION = Bounds(preemptions=1, faults=0)


def test_every_rung_has_an_experiment_and_only_flawed_ones_a_stored_witness() -> None:
    assert set(BUILDERS) == set(LADDER)
    stored = {path.stem for path in witness.FOLDER.glob("*.json")}
    assert stored <= {slug for slug, entry in LADDER.items() if entry.claim == "flawed"}


@pytest.mark.parametrize("slug", slow_but_for_each_kind(FLAWED))
def test_the_stored_witness_breaks_its_rung(sandbox: Sandbox, slug: str) -> None:
    stored = witness.load(slug)
    assert stored.invariant == LADDER[slug].breaks
    assert rehearse(LADDER[slug], stored, sandbox).broken == stored.invariant


@pytest.mark.parametrize("slug", slow_but_for_each_kind(FLAWED))
def test_the_search_finds_a_witness(sandbox: Sandbox, slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "load", lambda slug: pytest.fail("It reads the stored witness."))
    found = searched(slug, sandbox, bounds=verify.bounds_of(LADDER[slug]))
    assert broken_by(found) == LADDER[slug].breaks
    assert found.run.why


@pytest.mark.slow
@pytest.mark.parametrize("slug", QUICK)
def test_a_sound_rung_holds_in_every_schedule(sandbox: Sandbox, slug: str) -> None:
    found = searched(slug, sandbox)
    assert (found.run, found.exhausted) == (None, True)
    assert found.schedules > 5


@pytest.mark.parametrize("slug", ["renewal", "row-lock"])
def test_a_search_of_a_sound_rung_runs_the_same_schedules_again(sandbox: Sandbox, slug: str) -> None:
    first, second = (searched(slug, sandbox, bounds=ONE_PREEMPTION) for _ in range(2))
    assert (first.run, first.exhausted) == (second.run, second.exhausted) == (None, True)
    assert first.schedules == second.schedules > 1


@pytest.mark.slow
def test_three_clients_share_a_sound_lock(sandbox: Sandbox) -> None:
    found = searched("woken", sandbox, clients=3, bounds=Bounds(preemptions=1, faults=1))
    assert (found.run, found.exhausted, found.clients) == (None, True, 3)


@pytest.mark.parametrize("slug", [*sorted({*sellers.STRATEGIES} - {"lua-queue"}), *slow("lua-queue")])
def test_no_strategy_sells_a_unit_that_another_client_takes_after_the_read(sandbox: Sandbox, slug: str) -> None:
    """No schedule sells a unit twice, and no client gets an unexpected error."""
    experiment, seen = new_experiment(LADDER[slug], sandbox), set[str]()
    judge = experiment.verdict

    def verdict(answers: Mapping[str, str]) -> Sequence[Violation]:
        seen.update(answer for answer in answers.values() if "Error: " in answer)
        return judge(answers)

    experiment.verdict = verdict  # type: ignore[method-assign]
    found = explore(experiment, ONE_PREEMPTION, (), None)
    assert (found.run, found.exhausted, seen) == (None, True, set())


LOCKS: dict[str, tuple[Any, str, Any]] = {
    "row-lock": (stock, "lock", stock.unsplit),
    "advisory-lock": (advisory_lock, "LOCK", "SELECT unnest(%s::bigint[])"),
    "file-lock": (sellers, "_file_lock", lambda sku: ThreadLock(str(uuid4()))),
}
"""For each strategy, the part that excludes other clients, and a replacement that excludes nobody."""
NO_GUARD = "UPDATE inventory_stockitem SET on_hand = greatest(on_hand - %(units)s, 0) WHERE sku = %(sku)s"


@pytest.mark.parametrize(
    ("slug", "without", "broken"),
    [
        ("row-lock", ["guard"], None),
        ("advisory-lock", ["guard"], None),
        # `file-lock` reads no stock before its UPDATE, so its lock alone is not enough.
        *((slug, ["lock"], None) for slug in LOCKS),
        *((slug, ["lock", "guard"], "conserved") for slug in LOCKS),
    ],
)
def test_the_lock_or_the_guard_of_the_update_is_enough(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, slug: str, without: Collection[str], broken: Invariant | None
) -> None:
    """The lock or the guard of the UPDATE is enough. Negative control: without both, a unit is sold twice."""
    if "lock" in without:
        monkeypatch.setattr(*LOCKS[slug])
    if "guard" in without:
        monkeypatch.setattr(stock, "TAKE", NO_GUARD)
    assert broken_by(searched(slug, sandbox, bounds=ONE_PREEMPTION)) == broken


def test_an_unfinished_schedule_says_what_can_come_next(sandbox: Sandbox) -> None:
    trace = replay("set-nx-ex", ["A", "A", "A"], sandbox)
    assert [(choice.name, choice.is_fault) for choice in trace.choices] == [
        ("A", False),
        ("B", False),
        ("C", False),
        ("late release", True),
    ]
    assert trace.choices[0].does == "DEL rung:stock"
    assert not trace.ended
    assert [step.does for step in trace.steps] == ["SET rung:stock locked NX PX 30000", "GET stock", "SET stock 9"]
    assert [step.holders for step in trace.steps] == [("A",), ("A",), ()]


@pytest.mark.parametrize("schedule", [["D"], ["A", "A", "A", "A", "A"], ["late release"], ["crash A"], ["nonsense"]])
def test_an_impossible_choice_is_refused(sandbox: Sandbox, schedule: list[str]) -> None:
    with pytest.raises(Impossible, match="Possible choices: "):
        replay("set-nx-ex", schedule, sandbox)


def test_a_crashed_client_leaves_nothing_open(sandbox: Sandbox) -> None:
    trace = replay("row-lock", ["A", "A", "crash A"], sandbox, to_the_end=True)
    assert trace.steps[-1].answers == {"A": "crashed", "B": "sold"}
    assert trace.ledger == {"received": 1, "on hand": 0, "sold": 1}


@pytest.mark.parametrize(
    ("slug", "why"),
    [
        ("owner-as-text", "cannot enter before the TTL has passed"),
        ("wrong-argument", "cannot enter before the TTL has passed"),
        ("exception-leaves-the-lock", "cannot enter before the TTL has passed"),
        ("lost-wake-up", "can never enter"),
        ("setnx", "cannot enter even after the TTL has passed"),
    ],
)
def test_the_verdict_says_whether_time_helps(sandbox: Sandbox, slug: str, why: str) -> None:
    stored = witness.load(slug)
    trace = replay(slug, stored.schedule, sandbox, to_the_end=True)
    assert trace.why == f"No client is inside, but B {why}."
    ttls = [row["ttl"] for row in trace.steps[-1].state if row["where"] == "redis" and row["ttl"]]
    assert bool(ttls) == ("before" in why)


BROKEN_ALONE = {
    *("wrong-argument", "owner-as-text", "exception-leaves-the-lock", "segmented-keys", "duplicate-click"),
    *("commit-after-return", "refusal-swallowed", "lua-off-by-one", "decr-and-look-at-the-sign"),
}
"""Rungs that treat the second client wrongly even after the first client is done."""


@pytest.mark.slow
@pytest.mark.parametrize("slug", [slug for slug, entry in LADDER.items() if can_play(entry)])
def test_only_a_flaw_that_needs_no_concurrency_breaks_clients_one_after_the_other(sandbox: Sandbox, slug: str) -> None:
    trace = replay(slug, [], sandbox, to_the_end=True)
    assert trace.reached == (slug in BROKEN_ALONE), trace.why
    if slug not in BROKEN_ALONE:
        turns = [name for name, _steps in groupby(step.actor for step in trace.steps if step.actor)]
        assert sorted(turns) == sorted(set(turns))
        assert trace.ended
