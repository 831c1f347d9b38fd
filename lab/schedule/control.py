"""The negative control: the same clients in real threads and processes, and nobody who says who goes next.

A thread that is about to take a step pauses for a random moment at most, so what comes first is a matter of luck and of
the machine's own scheduler. What may happen to a rung happens once a try, at a random step.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from lab.ladder.catalogue import LADDER, Entry
from lab.ladder.locks.rung import OF_AN_ACTOR, Event
from lab.schedule import hooks
from lab.schedule.actor import Actor, Crash
from lab.schedule.controller import ALMOST, PASSES, TOGETHER
from lab.schedule.runs import events_of, new_trial
from lab.schedule.stage import Clock, Stage
from lab.schedule.steps import Pending
from lab.schedule.trial import TTL, Broken, Trial

QUICK = 0.005
"""Seconds that a try may take for as many tries as `MANY`."""
MANY, FEW = 10_000, 500
WARM = 20
"""Tries that say how long one takes."""
PAUSES = (0.0, 0.0002, 0.001, 0.005)
"""Seconds that a client pauses before a step at most; each try has one of them."""
LATE = 0.02
"""Seconds that somebody is late at most to whom something has happened."""
LOOK = 0.001
"""Seconds between two looks at what a thread waits for."""
LOOKS = 5
"""How often everybody who waits looks again, for nothing, before time passes for all of them."""
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


class Gate:
    """Lets time pass only while all threads are before a step or wait for one.

    The servers take microseconds to answer. Without this a client could be between an answer and what he does with it
    while half a minute passes, which is to be paused, and another event.
    """

    def __init__(self, threads: int) -> None:
        self._busy = threads
        self._passing = False
        self._condition = threading.Condition()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """For the block, this thread is before a step or waits."""
        self.leave()
        try:
            yield
        finally:
            with self._condition:
                self._condition.wait_for(lambda: not self._passing)
                self._busy += 1

    def leave(self) -> None:
        """This thread takes no step until it says so, or is done."""
        with self._condition:
            self._busy -= 1
            self._condition.notify_all()

    @contextmanager
    def closed(self, *, wait: bool) -> Iterator[bool]:
        """In a thread that is quiet: for the block, no other goes on.

        Args:
            wait: until the others are quiet too; otherwise they are not hindered.

        Yields:
            Whether they are.
        """
        if not wait:
            yield True
            return
        with self._condition:
            self._condition.wait_for(lambda: not self._passing)
            self._passing = True
            quiet = self._condition.wait_for(lambda: self._busy == 0, PATIENCE)
        try:
            yield quiet
        finally:
            with self._condition:
                self._passing = False
                self._condition.notify_all()


class Client:
    """An actor whom nobody stops.

    Args:
        name: A, B, ….
        job: what he does; it returns what he is told.
        attempt: the try that he is part of.
        seed: of his pauses.

    Attributes:
        answer: what he was told, when he is done.
        crashed: whether he is dead.
        cut: whether he was not let come to his end.
        done: whether his thread takes no further step.
        waits: whether he sleeps, or listens to Redis.
        looks: how often he has looked for what he waits for.
        session: his session with Postgres, if a lock of his has one.
    """

    def __init__(self, name: str, job: Callable[[], str], attempt: Try, seed: float) -> None:
        self.name = name
        self.answer: str | None = None
        self.crashed = False
        self.cut = False
        self.done = False
        self.waits = False
        self.looks = 0
        self.session: Any = None
        self.watchdog = attempt.trial.watchdogs[name]
        self._job = job
        self._try = attempt
        self._random = random.Random(seed)  # noqa: S311 - a pause, not a secret
        # On every machine the first thread has this name.
        self.thread = threading.Thread(target=self._run, name="MainThread", daemon=True)

    def clock(self) -> float:
        """The clock of the stage, which runs."""
        return self._try.stage.clock.now

    def stop(self, pending: Pending, at: tuple[str, int] | None = None) -> None:
        """In his own thread: pause for a moment, or for none. It may be the moment in which something happens.

        Raises:
            Crash: he is dead.
        """
        self.goes_on_living()
        with self._try.gate.quiet():
            late = self._try.reaches_a_step(self)
            time.sleep(self._random.uniform(0, LATE if late else self._try.pause))
        self.goes_on_living()

    def sleep(self, seconds: float, at: tuple[str, int] | None = None) -> None:
        """In his own thread: sleep for so long, or until time has passed.

        Raises:
            Crash: he is dead.
        """
        until = self.clock() + seconds
        self._wait(lambda: time.sleep(min(LOOK, max(0.0, until - self.clock()))), lambda: self.clock() >= until)

    def listen(self, connection: Any, until: float) -> bool:
        """In his own thread: wait until there is an answer to what blocks, or the time is over. See `Actor.listen`.

        Raises:
            Crash: he is dead.
        """
        heard = False

        def look() -> None:
            nonlocal heard
            if not isinstance(connection, hooks.Bell):
                heard = connection.can_read(timeout=LOOK)
            elif not (heard := connection.rang()):
                time.sleep(LOOK)

        self._wait(look, lambda: heard or self.clock() >= until)
        return heard

    def _wait(self, look: Callable[[], None], over: Callable[[], bool]) -> None:
        self.goes_on_living()
        with self._try.gate.quiet():
            self._try.reaches_a_step(self)
            self.waits = True
            try:
                while not over():
                    self.goes_on_living()
                    look()
                    self.looks += 1
            finally:
                self.waits = False
        self.goes_on_living()

    def goes_on_living(self) -> None:
        if self.crashed:
            raise Crash

    def _run(self) -> None:
        hooks.play(cast("Actor", self))
        try:
            self._try.barrier.wait()
            self.answer = self._job()
        except BaseException as error:
            # Here, while what he was in the middle of is still there: it is cleared away when he is nobody any more.
            self.answer = "crashed" if isinstance(error, Crash) else f"{type(error).__name__}: {error}"
            hooks.play(None)
        finally:
            hooks.play(None)
            if self.crashed:
                self._try.stage.dismiss(cast("Actor", self))
            self.done = True
            self._try.gate.leave()


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
        self._event: Event | None = chance.choice(events) if events else None
        self._due = chance.randrange(max(1, steps))  # a try may have come to its end before anybody took one
        self._mutex = threading.Lock()
        jobs = trial.begin()
        self.barrier = threading.Barrier(len(jobs))
        self.gate = Gate(len(jobs))
        self._clients = [Client(name, job, self, chance.random()) for name, job in jobs.items()]

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
                self.happened = client.crashed = True
                self.trial.dies(cast("Actor", client))
                return True
        with self.gate.closed(wait=not self.trial.works_unseen) as quiet, as_nobody():
            if not quiet or self.happened or not self.trial.offers(self._event, client.name):
                return False
            self.happened = True
            self.trial.happens(self._event, client.name if self._event in OF_AN_ACTOR else "")
            return True

    def _watch(self) -> Broken | None:
        """Return when all are done, or something is broken; let time pass when all wait for nothing else."""
        began = since = time.monotonic()
        before, passes = self._progress(0), 0
        looks = {client.name: client.looks for client in self._clients}
        goal = self.trial.entry.breaks
        while living := [client for client in self._clients if not client.done]:
            living[0].thread.join(LOOK)
            if self.trial.broken and goal in (None, self.trial.broken[0]):
                return None
            now = time.monotonic()
            who = " and ".join(client.name for client in living)
            if now - began > LIMIT:
                return "progress", f"After {LIMIT:g} s {who} have not come to an end."
            if (progress := self._progress(passes)) != before:
                before, since = progress, now
                looks = {client.name: client.looks for client in self._clients}
            waited = all(client.waits and client.looks >= looks[client.name] + LOOKS for client in living)
            if not waited:
                continue
            if self.happened and passes < PASSES:
                passes += self._time_passes(living)
            elif self.happened or now - since > PATIENCE:
                return "progress", f"Nobody is inside, and still {who} cannot enter."
        return None

    def _progress(self, passes: int) -> tuple[object, ...]:
        return sum(client.done for client in self._clients), tuple(self.trial.inside), self.happened, passes

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
def as_nobody() -> Iterator[None]:
    """For the block, this thread is no actor's: what it asks of the servers is no step."""
    before = hooks.actor()
    hooks.play(None)
    try:
        yield
    finally:
        hooks.play(before)


@contextmanager
def running(stage: Stage) -> Iterator[None]:
    """For the block, the clock of the stage runs."""
    before = stage.clock
    stage.clock = RunningClock()
    try:
        yield
    finally:
        stage.clock = before


def tries_of(entry: Entry, seconds: float) -> int:
    """How often a rung is tried: often enough to trust a sound one, and a flawed one's rate.

    Args:
        seconds: that a try takes.
    """
    return MANY if entry.claim == "sound" and seconds <= QUICK else FEW


def control(slug: str, stage: Stage, tries: int | None = None) -> dict[str, Any]:
    """Leave a rung to chance, many times.

    Args:
        tries: how many; None: as many as its claim wants.

    Returns:
        Its line of `manage.py ladder --control --json`.
    """
    entry, began = LADDER[slug], time.monotonic()
    trial = new_trial(entry, stage)
    broken, done, why, steps = 0, 0, "", 1
    with running(stage):
        while tries is None or done < tries:
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
