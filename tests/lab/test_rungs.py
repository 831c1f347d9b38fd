"""The rungs of both tracks, locks and stock: their claims, and schedules that prove them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import get_args

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from rich.console import Console

import lab.ladder.locks
import lab.ladder.stock
from inventory.strategies import registry
from lab.claims import witness
from lab.claims.finding import find
from lab.claims.runs import replay
from lab.explorer.search import Bounds, explore
from lab.explorer.terms import FAULT_TEXTS, Fault, Invariant
from lab.ladder.catalogue import LADDER, next_rung
from lab.ladder.locks import LOCKS, SOUND, rung
from lab.ladder.locks.fence import Fence
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from lab.ladder.locks.renewal_and_plain_release import RenewalAndPlainRelease
from lab.ladder.locks.rung import FaultRung
from lab.ladder.stock import RUNGS
from lab.ladder.stock.rung import Trigger
from lab.management.commands.replay import show
from lab.sandbox.sandbox import Sandbox
from lab.site.pages.swimlane import draw
from lab.workloads.registry import BUILDERS, can_play, new_experiment, sale
from lab.workloads.sellers import OneSegmentSeller, RungSeller
from lab.workloads.stock import Demand
from shop.models import Sale
from tests.lab.schedule_support import Player, slow_but_for_each_kind, steps
from tests.lab.test_schedules_on_servers import installed

__all__ = ["installed"]

FLAWED = [slug for slug, entry in LADDER.items() if entry.claim == "flawed"]
PLAYED = [slug for slug in FLAWED if can_play(LADDER[slug])]
ON_SERVERS = [slug for slug in FLAWED if slug not in PLAYED]


def test_every_rung_is_on_the_ladder_in_order() -> None:
    of_locks = [slug for slug, entry in LADDER.items() if entry.track == "locks"]
    assert [slug for slug in of_locks if slug in LOCKS] == list(LOCKS)
    assert [slug for slug in of_locks if slug in SOUND] == list(SOUND)
    assert sorted(of_locks) == sorted([*LOCKS, *SOUND])
    assert [slug for slug in FLAWED if slug not in LOCKS] == list(RUNGS)
    assert all(slug == rung.slug for rungs in (LOCKS, RUNGS) for slug, rung in rungs.items())


@pytest.mark.parametrize(
    ("package", "rungs", "others"),
    [
        (lab.ladder.locks, {*LOCKS, "fence", "redisson-watchdog"}, {"rung"}),
        (lab.ladder.stock, {*RUNGS, "sync-standby-failover"}, {"rung", "counter-rung"}),
    ],
    ids=["locks", "stock"],
)
def test_every_file_is_a_rung(package: object, rungs: set[str], others: set[str]) -> None:
    folder = Path(package.__file__).parent  # type: ignore[attr-defined]
    assert {path.stem.replace("_", "-") for path in folder.glob("*.py")} == rungs | others | {"--init--"}


def test_a_flawed_rung_says_what_it_is() -> None:
    for slug in FLAWED:
        entry = LADDER[slug]
        assert entry.title, slug
        assert (entry.flaw or "").endswith("."), slug
        assert entry.breaks in get_args(Invariant), slug
        assert entry.broken_by not in entry.survives, slug
        if slug in RUNGS:
            assert RUNGS[slug].breaks_under in get_args(Trigger), slug
        text = " ".join((entry.code.__doc__ or "").split())
        for part in ("Flawed", "schedule", f"`{entry.fixed_by}`"):
            assert part in text, slug
        _, _, sources = text.partition("Source: ")
        assert re.findall(r"\d{3}|pretix|common practice", sources) == entry.source.split(", "), slug


def test_the_fixes_lead_to_a_sound_rung_and_claim_to_survive_what_breaks_theirs() -> None:
    for slug in FLAWED:
        seen, fix = [slug], LADDER[slug].fixed_by or ""
        while LADDER[fix].claim == "flawed":
            assert fix not in seen
            seen.append(fix)
            fix = LADDER[fix].fixed_by or ""
        entry, fixed = LADDER[slug], next_rung(slug)
        assert fixed is not None, slug
        # `test_a_witness_breaks_nothing_on_the_fix` replays playable rungs. `ladder --verify` samples the others.
        assert can_play(entry) or entry.broken_by in {*fixed.survives, None}, slug


@pytest.mark.parametrize("rung", [rung for rung in LOCKS.values() if issubclass(rung, FaultRung)])
def test_a_sound_lock_survives_all_but_the_fault(rung: type[FaultRung]) -> None:
    capabilities = rung.lock.capabilities
    assert rung.broken_by not in rung.survives
    assert ("expiry" in rung.survives) is capabilities.renews
    assert ("crash" in rung.survives) is capabilities.survives_holder_crash


@pytest.mark.django_db
def test_a_rung_is_no_strategy_of_the_shop() -> None:
    assert not {*LOCKS, *SOUND, *RUNGS} & {*registry.NAMES}
    now = timezone.now()
    for slug in RUNGS:
        with pytest.raises(ValidationError, match=slug):
            Sale(name="x", opens_at=now, closes_at=now + timedelta(hours=1), strategy=slug).full_clean()


WITHOUT_ITS_FAULT = ("ttl-healed-in-one-script", "order-after-the-unlock")
"""On the fixes of these rungs, the fault cannot happen in the witness.

On the first fix, A gets the lock before B requests it; `SCHEDULES` has a schedule for it. On the second fix, A has
ended before its crash; the search of the fix has schedules in which A crashes earlier.
"""


@pytest.mark.parametrize("slug", slow_but_for_each_kind(PLAYED))
def test_a_witness_breaks_nothing_on_the_fix(play: Player, slug: str) -> None:
    """The fix has other steps, so the witness is replayed as far as possible. Its fault must still happen."""
    fix, stored = next_rung(slug), witness.load(slug)
    trace = play(fix.slug, stored.schedule, clients=stored.clients)
    assert (trace.broken, trace.why, trace.ended) == (None, "", True)
    happened = any(choice.startswith(LADDER[slug].broken_by or "") for choice in trace.schedule)
    assert happened is (slug not in WITHOUT_ITS_FAULT)


def test_after_a_clock_jump_the_store_refuses_a_holder(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = ["A", "A", "clock jump", "B", "B", "B", "A", "A"]
    run = replay("fence", schedule, sandbox, to_the_end=True)
    assert [step.holders for step in run.steps[1:4]] == [("A",), ("A",), ("A", "B")]
    assert (run.broken, run.ledger) == (None, {"received": 10, "left": 9, "confirmed": 1})
    # Negative control: without the claim, a clock jump breaks it.
    monkeypatch.setattr(Fence, "read", FenceOnWriteOnly.read)
    found = explore(new_experiment(LADDER["fence"], sandbox), Bounds(), ("clock jump",), None)
    assert (found.run.broken, "clock jump" in found.run.schedule) == ("conserved", True)


# Schedules in addition to the stored witnesses, which test_schedules.py runs

SCHEDULES: list[tuple[str, str, Invariant]] = [
    # The TTL ends after the work, which on the fix is one step earlier.
    ("ttl-healed-in-one-script", "A*3, late release, A, late release, B*2, A, C*2", "one holder"),
    # B reads the stock and waits for A's lock. Its snapshot is then older than A's order.
    ("lock-under-the-wrong-isolation", "A*4, B*4", "conserved"),
    ("lock-under-the-wrong-isolation", "A*4, pause A, B*9", "conserved"),
]


@pytest.mark.parametrize(("slug", "schedule", "breaks"), SCHEDULES)
def test_a_schedule_breaks_the_rung_and_not_its_fix(play: Player, slug: str, schedule: str, breaks: Invariant) -> None:
    assert play(slug, steps(schedule), faults=["late release", "pause"]).broken == breaks
    assert play(LADDER[slug].fixed_by or "", steps(schedule)).broken is None


@pytest.mark.slow
@pytest.mark.parametrize("slug", ON_SERVERS)
def test_a_witness_on_servers_breaks_the_rung_and_not_its_fix(play: Player, slug: str) -> None:
    stored = witness.load(slug)
    assert play(slug, stored.schedule).broken == stored.invariant == LADDER[slug].breaks
    assert play(LADDER[slug].fixed_by or "", stored.schedule, clients=stored.clients).broken is None


def test_a_watchdog_that_runs_until_the_del_does_not_outlast_a_pause(
    play: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watchdog that runs until the DEL helps against a slow release. A pause also stops the watchdog."""

    @contextmanager
    def hold(self: RenewalAndPlainRelease) -> Iterator[None]:
        lease = self.acquire()
        yield
        self.free(lease.token)
        rung.watchdog.forget(lease)

    monkeypatch.setattr(RenewalAndPlainRelease, "hold", hold)
    slug, faults = RenewalAndPlainRelease.slug, ("late release", "pause")
    slow, paused = (play(slug, steps(f"A*4, {fault}, B, A, C"), faults=faults) for fault in ("late release", "pause A"))
    assert (slow.broken, "late release" in slow.schedule) == (None, True)
    assert (paused.broken, "pause A" in paused.schedule) == ("one holder", True)


def test_a_pause_is_shown_with_the_client_that_it_hits(play: Player) -> None:
    trace = play("renewal", steps("B, B, pause B"), faults=["pause"])
    (row,) = (row for row in draw(trace).rows if row.mark == "world")
    assert (row.who, row.does) == ("B", FAULT_TEXTS["pause"])
    printed = StringIO()
    show(trace, Console(file=printed, width=300))
    (line,) = (line for line in printed.getvalue().splitlines() if FAULT_TEXTS["pause"] in line)
    assert [cell.strip() for cell in line.split("│")][2:4] == ["", FAULT_TEXTS["pause"]]


@pytest.mark.parametrize(
    ("slug", "figures"),
    [("compute-and-overwrite", (10, 9, 2)), ("order-after-the-unlock", (1, 0, 0)), ("segmented-keys", (4, 3, 1))],
)
def test_the_ledger_shows_units_received_on_hand_and_sold(
    play: Player, slug: str, figures: tuple[int, int, int]
) -> None:
    stored = witness.load(slug)
    ledger = play(slug, stored.schedule, clients=stored.clients).ledger
    assert (ledger["received"], ledger["on hand"], ledger["sold"]) == figures


SHOWN_ELSEWHERE = {"fence-on-write-only", "dead-head", "lock-under-the-wrong-isolation"}
"""Rungs that a fault breaks only with a third client or another preemption, as witnesses and `SCHEDULES` show."""
EXCLUDES_NOBODY = {"no-lock", "merge-without-a-lock", "answer-not-read", "for-update-without-the-row"}


@pytest.fixture
def _enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the stock rungs eight units, so that only a fault can break them."""
    for slug in RUNGS:
        seller = OneSegmentSeller if slug == "segmented-keys" else RungSeller
        monkeypatch.setitem(BUILDERS, slug, sale(Demand(8), seller=seller))


@pytest.mark.usefixtures("_enough")
@pytest.mark.parametrize("slug", slow_but_for_each_kind(PLAYED))
def test_a_rung_survives_exactly_what_it_claims(play: Player, slug: str) -> None:
    claimed = LADDER[slug].survives
    survived = play.survived(slug, {"crash", "expiry", "pause", *claimed})
    if slug in EXCLUDES_NOBODY:
        assert claimed == set()
    elif slug in SHOWN_ELSEWHERE:
        assert claimed <= survived
    else:
        assert claimed == survived


@pytest.mark.parametrize("slug", slow_but_for_each_kind(slug for slug in PLAYED if LADDER[slug].broken_by))
def test_without_its_fault_nothing_breaks_the_rung(play: Player, slug: str) -> None:
    entry = LADDER[slug]
    found = find(entry, play.sandbox, Bounds(preemptions=1, faults=0), lambda done: None, without=[*get_args(Fault)])
    assert (found.run, found.exhausted) == (None, True)


@pytest.mark.slow
@pytest.mark.usefixtures("_enough")
def test_only_a_crash_before_the_order_is_queued_loses_the_unit(play: Player) -> None:
    """A crash before the order is queued loses the unit. After a later crash, the next buyer saves the order."""
    slug = "queue-after-decrement-as-two-calls"
    ends = [play(slug, steps(f"A*{number}, crash A"), faults=["crash"]) for number in range(1, 9)]
    assert [(end.broken, end.ledger["sold"]) for end in ends] == [("conserved", 1), *[(None, 2)] * 7]
