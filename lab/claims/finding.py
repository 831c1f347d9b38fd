"""Find a schedule that breaks a rung (a lock or a way of selling). The stored schedule is its witness."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from lab.claims.runs import Impossible, rehearse
from lab.claims.witness import Witness
from lab.explorer.run import Run
from lab.explorer.sample import sample
from lab.explorer.search import Bounds, Found, explore
from lab.explorer.terms import Fault
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.restarting import RestartingSandbox
from lab.sandbox.sandbox import Sandbox
from lab.workloads.base import NAMES
from lab.workloads.registry import can_play, faults_of, new_experiment

REPLAYS = 20
"""Number of replays of a witness. Every replay must break its rung."""
SAMPLE = {"flawed": 1000, "sound": 30}
"""Number of random schedules on rungs whose servers are too slow to try all schedules."""
BEYOND = 4
"""A search that reaches its limit without a result also runs random schedules: one random schedule for every `BEYOND`
schedules of the limit."""
SLOW = 20
"""A schedule that restarts servers takes about as long as this number of other schedules."""

Progress = Callable[[int], object]
"""A function that is called with the number of schedules or replays that are done."""


def no_progress(done: int) -> None:
    """Do nothing. This is the `Progress` of callers that show no progress."""


def find(
    entry: LadderEntry,
    sandbox: Sandbox,
    bounds: Bounds,
    progress: Progress,
    clients: int = 0,
    without: Collection[Fault] = (),
) -> Found:
    """Search for a schedule that breaks a rung: the claimed invariant of a flawed rung, any invariant of a sound rung.

    A schedule must break a flawed rung in each of `REPLAYS` replays. A single break may be chance: if several clients
    wait for one row, Postgres may serve them in another order each time.

    Args:
        clients: number of clients; 0 for as many as the rung needs.
        without: faults to leave out.
    """

    def confirm(run: Run) -> bool:
        if entry.claim == "sound":
            return True
        witness = _witness(entry, run, len(experiment.names))
        return breaks(entry, witness, sandbox, REPLAYS) == REPLAYS

    experiment = new_experiment(entry, sandbox, clients or None)
    faults = [fault for fault in faults_of(entry) if fault not in without]
    if can_play(entry):
        found = explore(experiment, bounds, faults, entry.breaks, progress, confirm)
        if found.run is not None or found.exhausted or bounds.schedules is None or found.schedules < bounds.schedules:
            return found
        size, done = max(1, bounds.schedules // BEYOND), found.schedules
        beyond = sample(
            experiment, bounds, faults, entry.breaks, size, progress=lambda n: progress(done + n), confirm=confirm
        )
        return replace(
            found,
            run=beyond.run,
            schedules=done + beyond.schedules,
            sampled=beyond.schedules,
            seconds=found.seconds + beyond.seconds,
        )
    size = SAMPLE[entry.claim] if bounds.schedules is None else max(1, bounds.schedules // SLOW)
    found = sample(experiment, bounds, faults, entry.breaks, size, progress=progress, confirm=confirm)
    if found.run is None:
        return found
    shorter = shortened(entry, found.run, found.clients, sandbox)
    return replace(found, run=shorter) if confirm(shorter) else found


def shortened(entry: LadderEntry, run: Run, clients: int, sandbox: Sandbox) -> Run:
    """Shorten a random schedule: remove the choices that the violation does not need.

    Then rename the clients, so that the first client in the schedule is A.
    """

    def tried(schedule: Iterable[str]) -> Run:
        try:
            witness = Witness(entry.slug, run.broken or "progress", clients, tuple(schedule), 0, 0)
            return rehearse(entry, witness, sandbox)
        except Impossible:
            return Run()

    at = len(run.schedule)
    while at:
        at -= 1
        other = tried((*run.schedule[:at], *run.schedule[at + 1 :]))
        if other.broken == run.broken and cost(other) < cost(run):
            run, at = other, len(other.schedule)
    first = dict.fromkeys(re.findall(rf"\b[{NAMES}]\b", " ".join(run.schedule)))
    renamed = dict(zip(first, NAMES, strict=False))
    other = tried(re.sub(rf"\b[{NAMES}]\b", lambda name: renamed[name[0]], choice) for choice in run.schedule)
    return other if other.broken == run.broken and cost(other) <= cost(run) else run


def cost(run: Run) -> tuple[int, int]:
    """Return a sort key, lower for a better witness: the number of preemptions and faults, then the length."""
    return run.preemptions + run.faults, len(run.schedule)


def breaks(
    entry: LadderEntry, witness: Witness, sandbox: Sandbox, replays: int, progress: Progress = no_progress
) -> int:
    """Replay a witness several times. Return how many of the replays break its invariant."""
    broken = 0
    for done in range(1, replays + 1):
        with suppress(Impossible):
            broken += rehearse(entry, witness, sandbox).broken == witness.invariant
        progress(done)
    return broken


def witness_of(entry: LadderEntry, found: Found) -> Witness | None:
    """Return the witness that a search has found, or None."""
    if found.run is None or found.run.broken is None:
        return None
    return _witness(entry, found.run, found.clients)


def _witness(entry: LadderEntry, run: Run, clients: int) -> Witness:
    invariant = run.broken or "progress"
    return Witness(entry.slug, invariant, clients, tuple(run.schedule), run.preemptions, run.faults)


def restarting_sandbox(entry: LadderEntry, sandbox: Sandbox) -> Sandbox:
    """Return the sandbox for a rung: one whose Redis can restart, if the rung needs it; otherwise the given sandbox."""
    if entry.track == "locks" or "restart" not in faults_of(entry):
        return sandbox
    restarting: Sandbox = sandbox.resource("restarting", lambda: RestartingSandbox(sandbox.database))
    return restarting
