"""Commands, searches and flaws for the tests of schedules, and a player of schedules that are written as text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import pytest
from django.conf import settings

from inventory.requests import OrderRequest, Placement, Save
from inventory.strategies.guarded_update import GuardedUpdate
from lab.claims import verify
from lab.claims.runs import replay
from lab.explorer.run import STOP, Run, SchedulingPoint
from lab.explorer.scheduler import Scheduler
from lab.explorer.search import Bounds, Found, explore
from lab.explorer.terms import FAULTS_OF_AN_ACTOR, Fault, Invariant
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.site.pages.replays import offered_faults
from lab.workloads.registry import faults_of, new_experiment
from locking.redis import connection

ONE_OF_EACH_KIND = {
    *("no-lock", "setnx", "set-nx-ex", "watch-release", "lost-wake-up", "renewal-and-a-pause"),
    *("insert-without-owner-and-expiry", "compute-and-overwrite", "lock-inside-the-transaction", "commit-after-return"),
    *("decr-and-look-at-the-sign", "redis-taken-then-the-process-dies", "redis-loses-its-last-second"),
}
"""A few flawed rungs that cover every invariant, and locks in Redis, Postgres and memory.

They also cover every fault that may happen on a playable flawed rung. Rungs whose clients are processes are left out,
because they are slow.
"""


def slow_but_for_each_kind(slugs: Iterable[str]) -> list[Any]:
    """Return parameters for these rungs, marked slow unless they are in `ONE_OF_EACH_KIND`."""
    return [pytest.param(slug, marks=() if slug in ONE_OF_EACH_KIND else pytest.mark.slow) for slug in slugs]


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `manage.py` command in a separate process, with the real settings and a wide terminal."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
    variables = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "COLUMNS": "200", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)


def searched(slug: str, sandbox: Sandbox, *, clients: int | None = None, bounds: Bounds = verify.SOUND) -> Found:
    entry = LADDER[slug]
    return explore(new_experiment(entry, sandbox, clients), bounds, faults_of(entry), entry.breaks)


def broken_by(found: Found) -> Invariant | None:
    """Return the invariant that a search found broken, or None."""
    return found.run.broken if found.run else None


class SellsNothing(GuardedUpdate):
    """Reports a sale without selling."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        return Placement.COMMITTED


def mutate_script(name: str, old: str, new: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a script of `locking`, and load the changed script into the server."""
    original = connection.script

    def changed(asked: str) -> tuple[str, str]:
        text, digest = original(asked)
        if asked != name:
            return text, digest
        assert old in text
        text = text.replace(old, new)
        sandbox.redis.script_load(text)
        return text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    monkeypatch.setattr(connection, "script", changed)


def steps(schedule: str) -> list[str]:
    """Split `"A*3, crash A, B"` into the choices of a schedule: A, A, A, crash A, B."""
    choices: list[str] = []
    for part in schedule.split(", "):
        choice, _, times = part.partition("*")
        choices += [choice] * int(times or 1)
    return choices


@dataclass(frozen=True)
class Player:
    """Runs schedules on rungs in one sandbox."""

    sandbox: Sandbox

    def __call__(
        self, slug: str, schedule: Iterable[str], *, faults: Sequence[Fault] | None = None, clients: int | None = None
    ) -> Trace:
        """Run a schedule, and then every client to its end.

        Impossible choices are skipped, so that a schedule of one rung also runs on its fix.

        Args:
            faults: the faults that may happen; by default, those that the rung's page offers.
            clients: number of clients; by default, as many as the rung needs.
        """
        return replay(
            slug,
            list(schedule),
            self.sandbox,
            clients=clients,
            faults=offered_faults(LADDER[slug]) if faults is None else faults,
            to_the_end=True,
            as_far_as_possible=True,
        )

    def survived(self, slug: str, faults: Collection[Fault]) -> set[Fault]:
        """Return the faults that break nothing. Try each at every point in the run of A; then B runs to its end."""
        broken: set[Fault] = set()
        for number, possible in enumerate(self._possible(slug, sorted(faults))):
            for fault in faults:
                choice = f"{fault} A" if fault in FAULTS_OF_AN_ACTOR else fault
                if fault not in broken and choice in possible:
                    run = self._run(slug, steps(f"A*{number}, {choice}, B*60"), fault)
                    assert choice in run.schedule
                    if run.broken:
                        broken.add(fault)
        return {*faults} - broken

    def _possible(self, slug: str, faults: Sequence[Fault]) -> list[set[str]]:
        """Run A alone, and return the possible choices before each of its steps and after the last."""
        possible: list[set[str]] = []

        def go_on(point: SchedulingPoint) -> str:
            possible.append({*point.enabled, *point.faults()})
            return "A" if "A" in point.enabled else STOP

        Scheduler(new_experiment(LADDER[slug], self.sandbox), go_on, faults=faults, goal=LADDER[slug].breaks).play()
        return possible

    def _run(self, slug: str, schedule: list[str], fault: Fault) -> Run:
        """Run the possible choices of a schedule, then every client to its end, and record no trace."""

        def choose(point: SchedulingPoint) -> str:
            while schedule:
                if (wanted := schedule.pop(0)) in point.enabled or wanted in point.faults():
                    return wanted
            return point.enabled[0]

        experiment = new_experiment(LADDER[slug], self.sandbox)
        return Scheduler(experiment, choose, faults=[fault], goal=LADDER[slug].breaks).play()
