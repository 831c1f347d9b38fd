"""What fixes a flawed rung survives the schedule that breaks it, as the rung's page says and replays it."""

from __future__ import annotations

import pytest

from lab.claims import witness
from lab.claims.runs import replay
from lab.explorer.search import Bounds, explore
from lab.ladder.catalogue import LADDER, after
from lab.ladder.locks.fence import Fence
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from lab.sandbox.sandbox import Sandbox
from lab.site.pages.runs import offered
from lab.workloads.registry import can_play, new_experiment
from tests.lab.schedule_support import sandbox

__all__ = ["sandbox"]

PLAYED_BY_HAND = "ttl-healed-in-one-script"
"""Where it is fixed A is inside before B looks, so the TTL cannot pass there: test_rungs.py lets it pass later."""
FLAWED = [slug for slug, entry in LADDER.items() if entry.claim == "flawed"]


@pytest.mark.parametrize("slug", [slug for slug in FLAWED if can_play(LADDER[slug])])
def test_the_witness_of_a_rung_breaks_nothing_on_the_rung_that_fixes_it(sandbox: Sandbox, slug: str) -> None:
    """It is played there as far as it can be: the other takes other steps. What happened here happens there too."""
    entry, fix, stored = LADDER[slug], after(slug), witness.load(slug)
    assert stored is not None
    assert fix is not None
    trace = replay(
        fix.slug,
        stored.schedule,
        sandbox,
        clients=stored.clients,
        faults=offered(fix),
        to_the_end=True,
        as_far_as_possible=True,
    )
    assert (trace.broken, trace.why) == (None, "")
    assert trace.ended
    happened = any(choice.startswith(entry.broken_by or "") for choice in trace.schedule)
    assert happened is (slug != PLAYED_BY_HAND)


@pytest.mark.parametrize("slug", [slug for slug in FLAWED if not can_play(LADDER[slug])])
def test_what_breaks_a_rung_on_its_servers_is_claimed_by_the_rung_that_fixes_it(slug: str) -> None:
    """These are not replayed here: `ladder --verify` samples what is claimed, on servers of its own."""
    fix = after(slug)
    assert fix is not None
    assert LADDER[slug].broken_by in {*fix.survives, None}


def test_where_the_servers_clock_leaps_two_are_inside_and_the_store_refuses_the_first(sandbox: Sandbox) -> None:
    schedule = ["A", "A", "clock jump", "B", "B", "B", "A", "A"]
    run = replay("fence", schedule, sandbox, to_the_end=True)
    assert [step.holders for step in run.steps[1:4]] == [("A",), ("A",), ("A", "B")]
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 9, "told yes": 1})


def test_without_the_claim_at_the_read_such_a_leap_is_found_to_break_it(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fence, "read", FenceOnWriteOnly.read)
    found = explore(new_experiment(LADDER["fence"], sandbox), Bounds(), ("clock jump",), None)
    assert found.run is not None
    assert (found.run.broken, "clock jump" in found.run.schedule) == ("conserved", True)


@pytest.mark.parametrize("slug", FLAWED)
def test_what_breaks_a_rung_is_nothing_that_it_claims_to_survive(slug: str) -> None:
    assert LADDER[slug].broken_by not in LADDER[slug].survives
