"""Stress runs: a rung runs many times without a scheduler. Chance may break a flawed rung, but no sound rung."""

from __future__ import annotations

import time
from typing import Any

from lab.claims.attempt import Attempt, running_clock
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import WITH_A_STANDBY, new_experiment

QUICK = 0.005
"""If an attempt on a sound rung takes at most this number of seconds, the rung is tried `MANY` times."""
MANY, FEW = 10_000, 500
"""Number of attempts: `MANY` for quick sound rungs, `FEW` for all other rungs."""
WITH_STANDBY = 150
"""Number of attempts with a standby of Postgres. An attempt takes seconds: it kills a server and starts it again."""
WARM_UP = 20
"""Number of attempts that measure the duration of an attempt."""


def tries_of(entry: LadderEntry, seconds: float) -> int:
    """Return the number of attempts: enough to trust a sound rung, or to estimate how often a flawed rung breaks.

    Args:
        seconds: duration of an attempt.
    """
    return MANY if entry.claim == "sound" and seconds <= QUICK else FEW


def stress(slug: str, sandbox: Sandbox, tries: int | None = None) -> dict[str, Any]:
    """Run a rung many times without a scheduler.

    Args:
        tries: number of attempts. None for as many as the rung's claim needs. A flawed rung without a standby then gets
            more attempts until it breaks, at most `MANY`.

    Returns:
        The rung's line of `manage.py ladder --stress --json`.
    """
    if tries is None and slug in WITH_A_STANDBY:
        tries = WITH_STANDBY
    return stress_entry(LADDER[slug], sandbox, tries)


def stress_entry(entry: LadderEntry, sandbox: Sandbox, tries: int | None) -> dict[str, Any]:
    """Do the work of `stress`.

    This function uses no table of all rungs, so the hash of its behaviour depends on one rung only.
    """
    began = time.monotonic()
    experiment = new_experiment(entry, sandbox)
    broken, done, why, steps = 0, 0, "", 1
    until_broken = tries is None and entry.claim == "flawed"
    with running_clock(sandbox):
        while tries is None or done < tries or (until_broken and not broken and done < MANY):
            attempt = Attempt(experiment, f"{entry.slug} {done}", steps)
            violation = attempt.play()
            # An attempt that a violation has ended early does not show the full number of steps.
            steps = attempt.steps if violation is None else max(steps, attempt.steps)
            done += 1
            if violation is not None:
                broken += 1
                why = why or violation[1]
            if tries is None and done == WARM_UP:
                tries = tries_of(entry, (time.monotonic() - began) / done)
    line: dict[str, Any] = {
        "rung": entry.slug,
        "track": entry.track,
        "claim": entry.claim,
        "broken": broken,
        "tries": done,
    }
    if why:
        line["why"] = why
    return line | {"seconds": round(time.monotonic() - began, 2)}
