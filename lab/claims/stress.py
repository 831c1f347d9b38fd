"""The negative control: the same clients in real threads and processes, and nobody who says who goes next.

A thread that is about to take a step pauses for a random moment at most, so what comes first is a matter of luck and of
the machine's own scheduler. What may happen to a rung happens once a try, before a random step: to a server, to whoever
takes that step, or to one who waits meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, cast

from lab.claims.client import LOOK, Client, Gate
from lab.explorer.actor import Actor
from lab.explorer.scheduler import ALMOST, PASSES, TOGETHER
from lab.explorer.terms import FAULTS_OF_AN_ACTOR, Fault
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox.sandbox import Clock, Sandbox
from lab.workloads.base import TTL, Broken, Trial
from lab.workloads.registry import events_of, new_trial

QUICK = 0.005
"""Seconds that a try may take for as many tries as `MANY`."""
MANY, FEW = 10_000, 500
WARM = 20
"""Tries that say how long one takes."""
PAUSES = (0.0, 0.0002, 0.001, 0.005)
"""Seconds that a client pauses before a step at most; each try has one of them."""
LOOKS = 5
"""How often everybody who waits looks again, for nothing, before time passes for all of them, or is said to be out."""
PATIENCE = 0.2
"""Seconds in which nobody comes to an end, although nothing has happened, and all wait: nobody ever will."""
LIMIT = 30.0
"""Seconds after which a try is cut."""


class RunningClock(Clock):
    """Monotonic seconds that pass by themselves, and faster when told."""

    def __init__(self) -> None:
        self._ahead = 0.0

    @property
    def now(self) -> float:
        """Seconds."""
        return time.monotonic() + self._ahead

    @now.setter
    def now(self, seconds: float) -> None:
        self._ahead = seconds - time.monotonic()


class Try:
    """A trial that is left to chance once.

    Args:
        trial: what is done, on a stage whose clock runs.
        seed: of all that is random in it, but for the machine.
        steps: how many it took when it was tried before: the event comes at one of so many.
    """

    def __init__(self, trial: Trial, seed: str, steps: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - a test's own luck, not a secret
        events = events_of(trial.entry)
        self.trial = trial
        self.stage = trial.stage
        self.pause = chance.choice(PAUSES)
        self.steps = 0
        self.happened = False
        self._event: Fault | None = chance.choice(events) if events else None
        self._due = chance.randrange(max(1, steps))  # a try may have come to its end before anybody took one
        self._mutex = threading.Lock()
        self._chance = chance
        self._clients: list[Client] = []
        self.told: SimpleQueue[tuple[str, Future[bool] | None]] = SimpleQueue()
        """What clients, by name, say to the main thread: that they are done, or that what is due may happen."""

    def play(self) -> Broken | None:
        """Run it to its end.

        Returns:
            What is broken: of a flawed rung what it says that it breaks, of a sound one anything.
        """
        try:
            return self._played()
        finally:
            self.trial.end()

    def _played(self) -> Broken | None:
        goal = self.trial.entry.breaks
        jobs = self.trial.begin()
        self.barrier = threading.Barrier(len(jobs))
        self.gate = Gate(len(jobs))
        self._clients = [Client(name, job, self, self._chance.random()) for name, job in jobs.items()]
        for client in self._clients:
            client.thread.start()
        try:
            stands = self._watch()
        finally:
            self._clear_up()
        found = [broken for broken in (self.trial.broken, stands) if broken]
        if all(client.answer is not None and not client.cut for client in self._clients):
            found += self.trial.verdict({client.name: client.answer or "" for client in self._clients})
        return next((broken for broken in found if goal in (None, broken[0])), None)

    def reaches_a_step(self, client: Client) -> bool:
        """In the thread of a client, before a step: let happen what is due. Returns whether it did."""
        with self._mutex:
            self.steps += 1
            if self._event is None or self.happened or self.steps <= self._due:
                return False
            if self._event == "crash":
                self.happened = True
        if self._event == "crash":
            self._crash(client)
            return True
        with self.gate.closed(wait=not self.trial.works_unseen) as quiet:
            if not quiet:
                return False
            happens: Future[bool] = Future()
            self.told.put((client.name, happens))
            while not wait([happens], LOOK).done:
                client.goes_on_living()
            return happens.result()

    def _crash(self, client: Client) -> None:
        """In the thread of a client, before a step: he dies, or one of those who wait does."""
        waiting = not self.trial.works_unseen and any(other.waits for other in self._clients)
        with self.gate.closed(wait=waiting) as quiet:
            # Who waits takes no step in which he could die, and is only now surely not past his waiting.
            others = [other for other in self._clients if other.waits] if waiting and quiet else []
            dead = self._chance.choice([client, *others])
            dead.crashed = True
            self.trial.dies(cast("Actor", dead))

    def _hear(self) -> None:
        """Return soon, or when a client says something. What is due happens here: servers start in this thread."""
        with suppress(Empty):
            who, happens = self.told.get(timeout=LOOK)
            if happens is not None:
                happens.set_result(self._happens(who))

    def _happens(self, who: str) -> bool:
        if self.happened or self._event is None or not self.trial.offers(self._event, who):
            return False
        self.happened = True
        self.trial.happens(self._event, who if self._event in FAULTS_OF_AN_ACTOR else "")
        return True

    def _watch(self) -> Broken | None:
        """Return when all are done, or something is broken; let time pass when all wait for nothing else."""
        began = since = time.monotonic()
        before, passes = self._progress(0), 0
        looks = self._looks()
        goal = self.trial.entry.breaks
        while living := [client for client in self._clients if not client.done]:
            self._hear()
            if self.trial.broken and goal in (None, self.trial.broken[0]):
                return None
            now = time.monotonic()
            who = " and ".join(client.name for client in living)
            if now - began > LIMIT:
                return "progress", f"After {LIMIT:g} s {who} have not come to an end."
            if (progress := self._progress(passes)) != before:
                before, since, looks = progress, now, self._looks()
            if not all(client.waits and client.looks >= looks[client.name][0] + LOOKS for client in living):
                continue
            if self.happened and passes < PASSES:
                passes += self._time_passes(living)
            elif any(client.in_vain < looks[client.name][1] + LOOKS for client in living):
                continue  # who has slept until now has not looked yet whether he may enter
            elif self.happened or now - since > PATIENCE:
                return "progress", f"Nobody is inside, and still {who} cannot enter."
        return None

    def _progress(self, passes: int) -> tuple[object, ...]:
        return sum(client.done for client in self._clients), tuple(self.trial.inside), self.happened, passes

    def _looks(self) -> dict[str, tuple[int, int]]:
        return {client.name: (client.looks, client.in_vain) for client in self._clients}

    def _time_passes(self, living: list[Client]) -> bool:
        with self.gate.closed(wait=not self.trial.works_unseen) as quiet:
            if not quiet or not all(client.waits for client in living):
                return False
            left = self.stage.until_expiry()
            almost = left is not None and left > TOGETHER
            self.stage.pass_time(cast("float", left) - ALMOST if almost else (left or TTL) + TOGETHER)
            return True

    def _clear_up(self) -> None:
        for client in self._clients:
            if not client.done:
                client.crashed = client.cut = True
                self.stage.cut(cast("Actor", client))
        for client in self._clients:
            client.thread.join(LIMIT)
            if client.thread.is_alive():
                raise RuntimeError(f"{client.name} does not end.")


@contextmanager
def running(stage: Sandbox) -> Iterator[None]:
    """For the block, the clock of the stage runs."""
    before = stage.clock
    stage.clock = RunningClock()
    try:
        yield
    finally:
        stage.clock = before


def tries_of(entry: LadderEntry, seconds: float) -> int:
    """How often a rung is tried: often enough to trust a sound one, and a flawed one's rate.

    Args:
        seconds: that a try takes.
    """
    return MANY if entry.claim == "sound" and seconds <= QUICK else FEW


def control(slug: str, stage: Sandbox, tries: int | None = None) -> dict[str, Any]:
    """Leave a rung to chance, many times.

    Args:
        tries: how many; None: as many as its claim wants, and for a flawed one that chance seldom breaks, until it has.

    Returns:
        Its line of `manage.py ladder --control --json`.
    """
    entry, began = LADDER[slug], time.monotonic()
    trial = new_trial(entry, stage)
    broken, done, why, steps = 0, 0, "", 1
    until_broken = tries is None and entry.claim == "flawed"
    with running(stage):
        while tries is None or done < tries or (until_broken and not broken and done < MANY):
            attempt = Try(trial, f"{slug} {done}", steps)
            found = attempt.play()
            # What was cut short says little of how long it takes.
            steps = attempt.steps if found is None else max(steps, attempt.steps)
            done += 1
            if found is not None:
                broken += 1
                why = why or found[1]
            if tries is None and done == WARM:
                tries = tries_of(entry, (time.monotonic() - began) / done)
    said: dict[str, Any] = {"rung": slug, "track": entry.track, "claim": entry.claim, "broken": broken, "tries": done}
    if why:
        said["why"] = why
    return said | {"seconds": round(time.monotonic() - began, 2)}
