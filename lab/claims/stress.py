"""The stress runs, a negative control: chance breaks the flawed rungs without a scheduler, and no sound one."""

from __future__ import annotations

import time
from typing import Any

from lab.claims.attempt import Attempt, running_clock
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import new_experiment

QUICK = 0.005
"""A sound rung is tried `MANY` times if an attempt takes no longer than this, in seconds."""
MANY, FEW = 10_000, 500
"""Number of attempts: for quick sound rungs, and for all others."""
WARM_UP = 20
"""Number of attempts that measure how long an attempt takes."""


def tries_of(entry: LadderEntry, seconds: float) -> int:
    """Return how often a rung is tried: enough to trust a sound one, or to estimate the rate of a flawed one.

    Args:
        seconds: the time that an attempt takes.
    """
    return MANY if entry.claim == "sound" and seconds <= QUICK else FEW


def stress(slug: str, sandbox: Sandbox, tries: int | None = None) -> dict[str, Any]:
    """Run a rung many times without a scheduler.

    Args:
        tries: how many times; None: as many as its claim needs, and a flawed rung until it has broken once.

    Returns:
        The rung's line of `manage.py ladder --stress --json`.
    """
    return stress_entry(LADDER[slug], sandbox, tries)


def stress_entry(entry: LadderEntry, sandbox: Sandbox, tries: int | None) -> dict[str, Any]:
    """See `stress`. This function knows no other rung, so the hash of a result leads to no other one either."""
    began = time.monotonic()
    experiment = new_experiment(entry, sandbox)
    broken, done, why, steps = 0, 0, "", 1
    until_broken = tries is None and entry.claim == "flawed"
    with running_clock(sandbox):
        while tries is None or done < tries or (until_broken and not broken and done < MANY):
            attempt = Attempt(experiment, f"{entry.slug} {done}", steps)
            violation = attempt.play()
            # An attempt that a violation has ended early does not show how many steps there are.
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
