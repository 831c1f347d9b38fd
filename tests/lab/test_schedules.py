"""The controller, the search and the witnesses: on every rung that one Redis and one Postgres are enough for."""

from __future__ import annotations

import pytest

from inventory.models import StockItem
from lab.claims import verify, witness
from lab.claims.runs import Impossible, rehearse, replay
from lab.explorer.search import Bounds
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads import sellers
from lab.workloads.registry import can_play
from tests.lab.schedule_support import sandbox, searched

__all__ = ["sandbox"]

PLAYED = [slug for slug, entry in LADDER.items() if can_play(entry)]
FLAWED = [slug for slug in PLAYED if LADDER[slug].claim == "flawed"]
QUICK = ["renewal", "re-entrant", "fence", "lock-table-for-update", "redis-lock", "guarded-update", "lua"]
"""Sound rungs that are searched in a second or few; `manage.py ladder --verify` searches them all."""


# Witnesses


@pytest.mark.parametrize("slug", FLAWED)
def test_the_stored_witness_breaks_the_invariant_of_its_rung(sandbox: Sandbox, slug: str) -> None:
    stored = witness.load(slug)
    assert stored is not None
    assert stored.invariant == LADDER[slug].breaks
    assert [rehearse(stored, sandbox).broken for _ in range(3)] == [stored.invariant] * 3


@pytest.mark.parametrize("slug", FLAWED)
def test_the_search_finds_a_witness_without_knowing_the_stored_one(
    sandbox: Sandbox, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "load", lambda slug: pytest.fail("it looks at what is stored"))
    entry = LADDER[slug]
    found = searched(slug, sandbox, bounds=verify.bounds_of(entry))
    assert found.run is not None
    assert found.run.broken == entry.breaks
    assert found.run.why


def test_no_witness_is_stored_for_what_is_no_flawed_rung() -> None:
    stored = {path.stem for path in witness.FOLDER.glob("*.json")}
    assert stored <= {slug for slug, entry in LADDER.items() if entry.claim == "flawed"}


# Sound rungs


@pytest.mark.parametrize("slug", QUICK)
def test_a_sound_rung_holds_in_every_schedule(sandbox: Sandbox, slug: str) -> None:
    found = searched(slug, sandbox)
    assert (found.run, found.exhausted) == (None, True)
    assert found.schedules > 5


@pytest.mark.parametrize("slug", ["renewal", "guarded-update"])
def test_schedules_are_as_many_each_time(sandbox: Sandbox, slug: str) -> None:
    assert searched(slug, sandbox).schedules == searched(slug, sandbox).schedules


def test_three_clients_share_a_sound_lock(sandbox: Sandbox) -> None:
    found = searched("woken", sandbox, clients=3, bounds=Bounds(preemptions=1, faults=1))
    assert (found.run, found.exhausted, found.clients) == (None, True, 3)


# Replays


def test_a_schedule_that_is_not_over_says_what_may_come_next(sandbox: Sandbox) -> None:
    trace = replay("set-nx-ex", ["A", "A", "A"], sandbox)
    assert [choice.name for choice in trace.choices] == ["A", "B", "C", "late release"]
    assert [choice.event for choice in trace.choices] == [False, False, False, True]
    assert trace.choices[0].does == "DEL rung:stock"
    assert not trace.ended
    assert [step.does for step in trace.steps] == ["SET rung:stock locked NX PX 30000", "GET stock", "SET stock 9"]
    assert [step.holders for step in trace.steps] == [("A",), ("A",), ()]


@pytest.mark.parametrize("schedule", [["D"], ["A", "A", "A", "A", "A"], ["late release"], ["crash A"], ["nonsense"]])
def test_what_cannot_come_next_is_refused(sandbox: Sandbox, schedule: list[str]) -> None:
    with pytest.raises(Impossible, match="What can"):
        replay("set-nx-ex", schedule, sandbox)


def test_who_waits_in_a_server_is_shown_as_waiting(sandbox: Sandbox) -> None:
    trace = replay("renewal", ["A", "B", "B"], sandbox)
    assert trace.steps[-1].blocked == ("B",)
    trace = replay("row-lock", ["A", "A", "B", "B"], sandbox)
    assert trace.steps[-1].blocked == ("B",)


def test_who_crashes_leaves_nothing_open_and_is_told_nothing(sandbox: Sandbox) -> None:
    trace = replay("guarded-update", ["A", "A", "crash A"], sandbox, to_the_end=True)
    assert trace.steps[-1].answers == {"A": "crashed", "B": "sold"}
    assert trace.ledger == {"received": 1, "on hand": 0, "sold": 1}


@pytest.mark.django_db
def test_a_replay_leaves_nothing_in_the_shop(sandbox: Sandbox) -> None:
    replay("redis-lock", [], sandbox, to_the_end=True)
    assert not StockItem.objects.filter(sku=sellers.SKU).exists()


@pytest.mark.parametrize(
    ("slug", "why"),
    [
        ("owner-as-text", "not before the TTL is over."),
        ("wrong-argument", "not before the TTL is over."),
        ("exception-leaves-the-lock", "not before the TTL is over."),
        ("lost-wake-up", "nothing that they wait for will ever come."),
        ("setnx", "not even time has helped."),
    ],
)
def test_who_cannot_enter_is_told_whether_time_will_help(sandbox: Sandbox, slug: str, why: str) -> None:
    stored = witness.load(slug)
    assert stored is not None
    trace = replay(slug, stored.schedule, sandbox, to_the_end=True)
    assert trace.why == f"Nobody is inside, and still B cannot enter: {why}"
    left = [row["ttl"] for row in trace.steps[-1].state if row["where"] == "redis" and row["ttl"]]
    assert bool(left) == (why == "not before the TTL is over.")
