"""The negative control: chance alone breaks flawed rungs, and no sound one; time passes for all at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from lab.claims import stress, witness
from lab.claims.client import Client, Gate
from lab.claims.stress import FEW, LOOKS, MANY, PATIENCE, PAUSES, QUICK, RunningClock, Try, running, tries_of
from lab.explorer.actor import Actor, current_actor
from lab.ladder.catalogue import LADDER
from lab.sandbox import hooks
from lab.sandbox.sandbox import Sandbox
from lab.workloads.base import Broken
from lab.workloads.lock import LockTrial, sleep
from lab.workloads.postgres import USERS
from lab.workloads.registry import faults_of, new_experiment
from locking.postgres.session import PostgresSession
from tests.lab.schedule_support import sandbox
from tests.lab.test_schedules_on_servers import FLAWED, SOUND, installed

__all__ = ["installed", "sandbox"]

pytestmark = pytest.mark.slow

ENOUGH = 1500
"""Tries among which there is one that breaks a rung which chance breaks once in a hundred."""


@pytest.mark.parametrize("slug", ["no-lock", "thread-lock", "setnx", "watch-release", "subtract-in-sql"])
def test_chance_breaks_a_flawed_rung(sandbox: Sandbox, slug: str) -> None:
    said = stress.control(slug, sandbox, tries=60)
    assert 0 < said["broken"] <= said["tries"] == 60
    assert said["why"]


@pytest.mark.parametrize(
    "slug", ["renewal", "fence", "fair", "lock-table-insert", "postgres-advisory-lock", "guarded-update"]
)
def test_chance_does_not_break_a_sound_rung(sandbox: Sandbox, slug: str) -> None:
    said = stress.control(slug, sandbox, tries=60)
    assert (said["broken"], said["tries"], said.get("why")) == (0, 60, None)


@pytest.mark.parametrize("slug", FLAWED)
def test_chance_breaks_a_flawed_rung_on_servers_of_its_own(sandbox: Sandbox, slug: str) -> None:
    steps = 1
    with running(sandbox):
        for number in range(ENOUGH):
            attempt = Try(new_experiment(LADDER[slug], sandbox), f"{slug} {number}", steps)
            attempt.pause = PAUSES[-1]  # the others break them too, but seldom
            if (broken := attempt.play()) is not None:
                assert broken[0] == LADDER[slug].breaks
                return
            steps = attempt.steps
    pytest.fail(f"{ENOUGH} tries have not broken it.")


@pytest.mark.parametrize("slug", SOUND)
def test_chance_does_not_break_a_sound_rung_on_servers_of_its_own(sandbox: Sandbox, slug: str) -> None:
    """Whatever it survives happens, often enough for the judge to be wrong about it."""
    happened, steps = 0, 1
    with running(sandbox):
        for event in faults_of(LADDER[slug]):
            for number in range(12):
                attempt = Try(new_experiment(LADDER[slug], sandbox), f"{slug} {number}", steps)
                attempt._event = event
                assert attempt.play() is None
                steps = attempt.steps
                happened += attempt.happened
    assert happened > 12


@pytest.mark.parametrize("slug", ["renewal", "guarded-update"])
def test_it_would_notice_if_a_sound_rung_were_broken(
    sandbox: Sandbox, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is that of the trial: one who was told yes and got nothing counts."""
    kind = type(new_experiment(LADDER[slug], sandbox))
    real = kind.verdict
    monkeypatch.setattr(kind, "verdict", lambda self, said: [*real(self, said), ("conserved", "One too many.")])
    assert stress.control(slug, sandbox, tries=3)["broken"] == 3


def test_what_may_happen_does_once_a_try(sandbox: Sandbox) -> None:
    happened = []
    with running(sandbox):
        for number in range(30):
            attempt = Try(new_experiment(LADDER["renewal"], sandbox), f"{number}", 8)
            assert attempt.play() is None
            happened.append(attempt.happened)
    # It is offered only while somebody holds the lock, so not each time.
    assert sum(happened) > 15


def test_who_crashes_leaves_the_others_a_lock_that_frees_itself(sandbox: Sandbox) -> None:
    """Half a minute of the rung's time passes once all wait for nothing but that."""
    crashed = 0
    with running(sandbox):
        for number in range(40):
            trial = new_experiment(LADDER["set-nx-ex"], sandbox)
            attempt = Try(trial, f"{number}", 6)
            attempt._event = "crash"
            attempt.play()
            crashed += len(trial.crashed)
            assert all(client.answer in ("sold", "crashed") for client in attempt._clients)
    assert crashed > 20


def test_who_dies_while_he_waits_does_so_at_a_step_of_another(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He takes no step himself."""
    seen, real = set(), Try._crash

    def crash(attempt: Try, client: Client) -> None:
        real(attempt, client)
        seen.add(client.crashed)

    monkeypatch.setattr(Try, "_crash", crash)
    with running(sandbox):
        for number in range(ENOUGH):
            attempt = Try(new_experiment(LADDER["renewal"], sandbox), f"{number}", 12)
            attempt._event = "crash"
            assert attempt.play() is None
            if len(seen) > 1:
                break
    assert seen == {True, False}


class Sleepers(LockTrial):
    """Clients who look a few times whether they may enter, and sleep in between."""

    def work(self, name: str, client: Any, lock: Any) -> str:
        for _ in range(LOOKS - 1):
            sleep(PATIENCE / 2)
        return super().work(name, client, lock)


def test_who_has_looked_a_few_times_only_is_not_said_to_be_out(sandbox: Sandbox) -> None:
    """They take longer than anybody is patient."""
    with running(sandbox):
        attempt = Try(Sleepers(LADDER["renewal"], sandbox, 2), "", 1)
        attempt._event = None
        assert attempt.play() is None


class Bell(hooks.Bell):
    """It rings at the third look, and notes who looks."""

    def __init__(self) -> None:
        self.looked: list[object] = []

    def rang(self) -> bool:
        self.looked.append(current_actor())
        return len(self.looked) == 3


class Listeners(LockTrial):
    """Clients who listen before they sell."""

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        self.bells = {name: Bell() for name in self.names}
        return super().prepare()

    def work(self, name: str, client: Any, lock: Any) -> str:
        cast("Actor", current_actor()).listen(self.bells[name], math.inf)
        return super().work(name, client, lock)


def test_to_look_whether_a_bell_has_rung_is_no_step(sandbox: Sandbox) -> None:
    """What a bell asks of its server for that, it asks as nobody."""
    trial = Listeners(LADDER["renewal"], sandbox, 2)
    with running(sandbox):
        assert Try(trial, "", 1).play() is None
    assert [bell.looked for bell in trial.bells.values()] == [[None] * 3] * 2


def test_the_gate_is_closed_by_one_at_a_time_and_no_other_waits_for_him() -> None:
    """He waits for the main thread, which closes the gate too when time is to pass."""
    gate = Gate(0)
    with gate.closed(wait=True) as his, gate.closed(wait=True) as another:
        assert (his, another) == (True, False)
    with gate.closed(wait=True) as later:
        assert later


def test_what_stands_in_leaves_with_the_last_try(sandbox: Sandbox) -> None:
    stress.control("postgres-advisory-lock", sandbox, tries=1)
    assert {module.PostgresSession for module in USERS} == {PostgresSession}


def test_the_clock_runs_and_can_be_told_to_be_later(sandbox: Sandbox) -> None:
    clock, before = RunningClock(), sandbox.clock
    first = clock()
    clock.now += 30.0
    assert 30.0 <= clock() - first < 40.0
    with running(sandbox):
        assert isinstance(sandbox.clock, RunningClock)
    assert sandbox.clock is before


@pytest.mark.parametrize(
    ("slug", "breaks_at", "broken", "tries"),
    [("no-lock", 28, 1, 28), ("no-lock", 3, 1, 25), ("no-lock", 99, 0, 30), ("renewal", 28, 0, 25)],
)
def test_a_flawed_rung_is_tried_until_it_has_broken(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, slug: str, breaks_at: int, broken: int, tries: int
) -> None:
    """Or so often that something must be wrong with the trial."""
    monkeypatch.setattr(stress, "tries_of", lambda entry, seconds: 25)
    monkeypatch.setattr(stress, "MANY", 30)
    played = []

    def play(attempt: Try) -> Broken | None:
        played.append(attempt)
        return ("conserved", "One too many.") if len(played) == breaks_at else None

    monkeypatch.setattr(Try, "play", play)
    said = stress.control(slug, sandbox)
    assert (said["broken"], said["tries"]) == (broken, tries)


@pytest.mark.parametrize(
    ("slug", "seconds", "tries"),
    [("renewal", QUICK, MANY), ("renewal", 1.01 * QUICK, FEW), ("no-lock", QUICK / 2, FEW)],
)
def test_a_sound_rung_is_tried_more_often_where_it_costs_little(slug: str, seconds: float, tries: int) -> None:
    assert tries_of(LADDER[slug], seconds) == tries


def test_every_rung_was_left_to_chance_which_breaks_the_flawed_ones_and_them_alone() -> None:
    lines = {slug: witness.control(slug) for slug in LADDER}
    assert [slug for slug, line in lines.items() if line is None] == []
    broken = {slug for slug, line in lines.items() if line is not None and line["broken"]}
    assert broken == {slug for slug, entry in LADDER.items() if entry.claim == "flawed"}
    assert min(line["tries"] for line in lines.values() if line is not None) >= FEW


def test_the_rate_is_kept_with_the_source_that_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "CONTROL", tmp_path / "control.json")
    assert witness.control("no-lock") is None
    witness.store_control(LADDER["no-lock"], {"broken": 17, "tries": 500})
    kept = witness.control("no-lock")
    assert kept is not None
    assert (kept["broken"], kept["tries"], kept["outdated"]) == (17, 500, False)
    assert witness.control("renewal") is None
    monkeypatch.setattr(witness, "source_hash", lambda entry: "another")
    kept = witness.control("no-lock")
    assert kept is not None
    assert kept["outdated"]


def test_what_is_kept_of_a_sound_rung_is_that_it_held() -> None:
    said = json.loads(witness.CONTROL.read_text(encoding="utf-8"))
    assert {slug: line["broken"] for slug, line in said.items() if line["claim"] == "sound" and line["broken"]} == {}
    assert all(line["tries"] >= FEW for line in said.values())
