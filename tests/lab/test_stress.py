"""Stress runs: chance alone breaks flawed rungs and no sound one, and time passes for all clients at once."""

from __future__ import annotations

from typing import Any

import pytest

from lab.claims import stress
from lab.claims.attempt import LOOKS, PAUSES, STUCK_AFTER, Attempt, running_clock
from lab.claims.client import Client
from lab.claims.gate import Gate
from lab.claims.stress import FEW, MANY, QUICK, tries_of
from lab.explorer.actor import current_actor
from lab.explorer.terms import Violation
from lab.ladder.catalogue import LADDER
from lab.sandbox.hooks import StoppingSession
from lab.sandbox.sandbox import Sandbox
from lab.workloads.base import sleep
from lab.workloads.lock import RedisLockWorkload
from lab.workloads.postgres import USERS
from lab.workloads.registry import faults_of, lock_experiment, new_experiment
from locking.postgres.session import PostgresSession
from tests.lab.test_schedules_on_servers import FLAWED, SOUND, installed

__all__ = ["installed"]

pytestmark = pytest.mark.slow

ENOUGH = 1500
"""Enough attempts to break a rung that breaks once in a hundred attempts."""


def attempts(slug: str, sandbox: Sandbox, number: int, steps: int = 1, **changed: Any) -> Any:
    """Create this many attempts of a rung with the given attributes. Play each, and yield it with its violation."""
    with running_clock(sandbox):
        for seed in range(number):
            attempt = Attempt(new_experiment(LADDER[slug], sandbox), f"{slug} {seed}", steps)
            for name, value in changed.items():
                setattr(attempt, name, value)
            yield attempt, attempt.play()
            steps = max(steps, attempt.steps)


@pytest.mark.parametrize("slug", ["no-lock", "thread-lock", "setnx", "watch-release", "subtract-in-sql"])
def test_chance_breaks_a_flawed_rung(sandbox: Sandbox, slug: str) -> None:
    line = stress.stress(slug, sandbox, tries=60)
    assert 0 < line["broken"] <= line["tries"] == 60
    assert line["why"]


@pytest.mark.parametrize(
    "slug", ["renewal", "fence", "fair", "lock-table-insert", "postgres-advisory-lock", "guarded-update"]
)
def test_chance_breaks_no_sound_rung(sandbox: Sandbox, slug: str) -> None:
    line = stress.stress(slug, sandbox, tries=60)
    assert (line["broken"], line["tries"], line.get("why")) == (0, 60, None)
    assert {module.PostgresSession for module in USERS} == {PostgresSession}, "stand-ins leave with the last attempt"


@pytest.mark.parametrize("slug", FLAWED)
def test_chance_breaks_a_flawed_rung_on_servers_of_its_own(sandbox: Sandbox, slug: str) -> None:
    # Shorter pauses break these rungs too rarely.
    found = (violation for _, violation in attempts(slug, sandbox, ENOUGH, pause=PAUSES[-1]) if violation)
    assert next(found)[0] == LADDER[slug].breaks


@pytest.mark.parametrize("slug", SOUND)
def test_chance_breaks_no_sound_rung_on_servers_of_its_own(sandbox: Sandbox, slug: str) -> None:
    happened = 0
    for fault in faults_of(LADDER[slug]):
        for attempt, violation in attempts(slug, sandbox, 12, fault=fault):
            assert violation is None
            happened += attempt.happened
    assert happened > 12


def test_a_fault_happens_in_most_attempts(sandbox: Sandbox) -> None:
    """A fault happens in most attempts: not in all, because it needs a held lock."""
    played = list(attempts("renewal", sandbox, 30, steps=8))
    assert all(violation is None for _, violation in played)
    assert sum(attempt.happened for attempt, _ in played) > 15


def test_a_waiting_client_may_crash_at_the_step_of_another(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, original = set(), Attempt._crash

    def crash(attempt: Attempt, client: Client) -> None:
        original(attempt, client)
        seen.add(client.crashed)

    monkeypatch.setattr(Attempt, "_crash", crash)
    for _, violation in attempts("renewal", sandbox, ENOUGH, steps=12, fault="crash"):
        assert violation is None
        if len(seen) > 1:
            break
    assert seen == {True, False}


class Sleepers(RedisLockWorkload):
    """Clients that sleep longer than a stuck run may last, but that check less often than a stuck client."""

    def work(self, name: str, client: Any, lock: Any) -> str:
        for _ in range(LOOKS - 1):
            sleep(STUCK_AFTER / 2)
        return super().work(name, client, lock)


def test_a_few_looks_in_vain_are_not_stuck(sandbox: Sandbox) -> None:
    with running_clock(sandbox):
        attempt = Attempt(lock_experiment(Sleepers)(LADDER["renewal"], sandbox, "AB"), "", 1)
        attempt.fault = None
        assert attempt.play() is None


def test_looking_for_a_notification_is_no_step(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def arrived(session: StoppingSession, look: Any = StoppingSession.arrived) -> bool:
        looked.append(current_actor())
        return bool(look(session))

    monkeypatch.setattr(StoppingSession, "arrived", arrived)
    next(attempt for attempt in attempts("lock-table-insert", sandbox, ENOUGH) if looked)
    assert set(looked) == {None}


def test_only_one_thread_closes_the_gate() -> None:
    """Only one of two threads closes the gate. The other does not wait, because the first may be waiting for it."""
    gate = Gate(0)
    with gate.closed(wait=True) as first, gate.closed(wait=True) as second:
        assert (first, second) == (True, False)
    with gate.closed(wait=True) as later:
        assert later


@pytest.mark.parametrize(
    ("slug", "breaks_at", "broken", "tries"),
    [("no-lock", 28, 1, 28), ("no-lock", 3, 1, 25), ("no-lock", 99, 0, 30), ("renewal", 28, 0, 25)],
)
def test_a_flawed_rung_is_tried_until_it_breaks(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, slug: str, breaks_at: int, broken: int, tries: int
) -> None:
    """A flawed rung is tried until it breaks, at most `MANY` times."""
    monkeypatch.setattr(stress, "tries_of", lambda entry, seconds: 25)
    monkeypatch.setattr(stress, "MANY", 30)
    played = []

    def play(attempt: Attempt) -> Violation | None:
        played.append(attempt)
        return ("conserved", "One too many.") if len(played) == breaks_at else None

    monkeypatch.setattr(Attempt, "play", play)
    line = stress.stress(slug, sandbox)
    assert (line["broken"], line["tries"]) == (broken, tries)


@pytest.mark.parametrize(
    ("slug", "seconds", "tries"),
    [("renewal", QUICK, MANY), ("renewal", 1.01 * QUICK, FEW), ("no-lock", QUICK / 2, FEW)],
)
def test_a_quick_sound_rung_is_tried_more_often(slug: str, seconds: float, tries: int) -> None:
    assert tries_of(LADDER[slug], seconds) == tries
