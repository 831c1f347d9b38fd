"""The fix of a flawed rung (a lock or way of selling) survives the schedule that breaks the rung."""

from __future__ import annotations

import pytest

from lab.claims import witness
from lab.claims.runs import replay
from lab.explorer.search import Bounds, explore
from lab.ladder.catalogue import LADDER, next_rung
from lab.ladder.locks.fence import Fence
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import can_play, new_experiment
from tests.lab.rung_support import Player
from tests.lab.schedule_support import slow_but_for_each_kind

WITHOUT_ITS_FAULT = "ttl-healed-in-one-script"
"""The rung whose fault cannot happen on its fix: A has the lock before B requests it. `test_rungs` covers this."""
FLAWED = [slug for slug, entry in LADDER.items() if entry.claim == "flawed"]


@pytest.mark.parametrize("slug", slow_but_for_each_kind(slug for slug in FLAWED if can_play(LADDER[slug])))
def test_a_witness_breaks_nothing_on_the_fix(play: Player, slug: str) -> None:
    """A witness (the schedule that breaks a rung) breaks nothing on the rung's fix, where its fault must still happen.

    The fix has other steps, so the witness is replayed as far as possible.
    """
    entry, fix, stored = LADDER[slug], next_rung(slug), witness.load(slug)
    assert stored is not None
    assert fix is not None
    trace = play(fix.slug, stored.schedule, clients=stored.clients)
    assert (trace.broken, trace.why, trace.ended) == (None, "", True)
    happened = any(choice.startswith(entry.broken_by or "") for choice in trace.schedule)
    assert happened is (slug != WITHOUT_ITS_FAULT)


def test_a_fix_claims_to_survive_what_breaks_its_rung() -> None:
    for slug in FLAWED:
        entry, fix = LADDER[slug], next_rung(slug)
        assert fix is not None, slug
        # `test_a_witness_breaks_nothing_on_the_fix` replays playable rungs. `ladder --verify` samples the others.
        assert can_play(entry) or entry.broken_by in {*fix.survives, None}, slug


def test_after_a_clock_jump_the_store_refuses_the_first_holder(sandbox: Sandbox) -> None:
    schedule = ["A", "A", "clock jump", "B", "B", "B", "A", "A"]
    run = replay("fence", schedule, sandbox, to_the_end=True)
    assert [step.holders for step in run.steps[1:4]] == [("A",), ("A",), ("A", "B")]
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 9, "told yes": 1})


def test_without_the_claim_a_clock_jump_breaks_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fence, "read", FenceOnWriteOnly.read)
    found = explore(new_experiment(LADDER["fence"], sandbox), Bounds(), ("clock jump",), None)
    assert found.run is not None
    assert (found.run.broken, "clock jump" in found.run.schedule) == ("conserved", True)
