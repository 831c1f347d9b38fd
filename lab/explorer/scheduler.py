"""Run an experiment once. Every actor stops before each step, and a chooser picks the next actor or fault."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from typing import cast

from lab.explorer.actor import Actor, State
from lab.explorer.actors import Actors
from lab.explorer.experiment import Experiment
from lab.explorer.processor import on_one_processor
from lab.explorer.run import STOP, Chooser, Run, SchedulingPoint
from lab.explorer.terms import (
    EVERYTHING,
    FAULT_TEXTS,
    FAULTS_OF_AN_ACTOR,
    POSTGRES,
    Fault,
    Invariant,
    PendingStep,
    Violation,
    Where,
    parse_fault,
    watchdog_of,
)
from lab.explorer.trace import Choice, Step
from lab.explorer.trace_equivalence import TraceKey

MAX_STEPS = 400
"""Maximum number of steps of a run. Actors that only hinder each other would never finish."""
MAX_PASSES = 8
"""How often a run with a fault may let time pass if no actor can go on and sleeping brings no progress. If no actor can
go on after that, the run ends with a violation of `progress`."""
BEFORE_EXPIRY = 0.3
"""Seconds before an expiry at which polling waiters check once more. They may read a TTL that is rounded to zero."""
EXPIRY_MARGIN = 0.5
"""Seconds that pass beyond the next deadline, so that waits and leases with almost the same deadline end together."""

CANNOT_ENTER = {
    "never": "No client is inside, but {who} can never enter.",
    "expires": "No client is inside, but {who} cannot enter before the TTL has passed.",
    "passed": "No client is inside, but {who} cannot enter even after the TTL has passed.",
}


class TooLong(RuntimeError):
    """The run has taken more real time than `seconds` allows."""


class Scheduler:
    """Runs an experiment once.

    Args:
        experiment: the experiment to run.
        choose: function that picks the next step or fault.
        faults: the faults that may happen between the actors' steps.
        watch: whether to record the effect of every step, and the final figures. Recording queries the servers at each
            step.
        goal: the invariant to break; None for any invariant.
        seconds: real time in seconds after which no further step is taken.
    """

    def __init__(
        self,
        experiment: Experiment,
        choose: Chooser,
        *,
        faults: Collection[Fault] = (),
        watch: bool = False,
        goal: Invariant | None = None,
        seconds: float = math.inf,
    ) -> None:
        self.experiment = experiment
        self.history = experiment.history
        self.environment = experiment.environment
        self.choose = choose
        self.faults = faults
        self.watch = watch
        self.goal = goal
        self.until = time.monotonic() + seconds
        self.run = Run()
        self.actors = Actors(self.environment)
        self._current: str | None = None
        self._fault_happened = False
        self._passes = 0
        self._progress_at_last_sleep: object = None
        self._key = TraceKey()

    def play(self) -> Run:
        """Run the experiment to its end, then end its actors.

        Raises:
            Stuck: an actor neither stops nor waits in a server.
            TooLong: the run has taken more real time than `seconds` allows.
        """
        try:
            for name, job in self.experiment.begin().items():
                self.actors.add(name, job, self.experiment.watchdogs[name])
            with on_one_processor():
                for actor in self.actors.all():
                    actor.start()
                    self.actors.wait_until_quiescent()
                while self._step():
                    pass
            answers = self.run.answers = self.actors.answers()
            if self.run.broken is None and not self.run.choices:
                found = [*filter(None, [self.history.broken]), *self.experiment.verdict(answers)]
                found.sort(key=lambda violation: violation[0] != self.goal)
                self._conclude(next(iter(found), None))
            if self.watch:
                self.run.ledger = self.experiment.ledger(answers)
            return self.run
        finally:
            self.actors.kill_all()
            self.experiment.end()

    def _step(self) -> bool:
        """Make one choice and carry it out. Return whether the run goes on."""
        if time.monotonic() > self.until:
            raise TooLong
        living = self.actors.living()
        if not living:
            return False
        if self.history.broken and self.goal in (None, self.history.broken[0]):
            self._conclude(self.history.broken)
            return False
        if len(self.run.schedule) >= MAX_STEPS:
            self._conclude(("progress", f"The clients have not finished after {MAX_STEPS} steps."))
            return False
        enabled = [actor for actor in living if actor.state is State.STOPPED and not actor.asleep]
        if not enabled:
            return self._let_time_pass(living)
        enabled.sort(key=lambda actor: (actor.name != self._current, actor.name))
        point = self._point(enabled, living)
        choice = self.choose(point)
        if choice == STOP:
            self.run.choices = _choices(enabled, point.faults())
            return False
        if choice not in point.enabled:
            self.run.faults += 1
        elif choice != self._current and self._current in point.enabled:
            self.run.preemptions += 1
        self._apply(choice)
        return True

    def _point(self, enabled: Sequence[Actor], living: Sequence[Actor]) -> SchedulingPoint:
        asleep = [actor.name for actor in living if actor.state is State.STOPPED and actor.asleep]
        return SchedulingPoint(
            tuple(actor.name for actor in enabled),
            self._current,
            {actor.name: actor.pending for actor in enabled if actor.pending},
            frozenset(actor.name for actor in enabled if actor.steps == 0 and not actor.works_for),
            lambda: self._offered(living),
            self._key.value(self._current, asleep),
        )

    def _apply(self, choice: str) -> None:
        if (actor := self.actors.get(choice)) is not None:
            self._resume(actor)
            return
        fault, name = parse_fault(choice)
        self._fault_happened = True
        if fault == "crash":
            self._crash(self.actors[name])
            return
        if fault == "tick":
            self._start_renewal(name)
        else:
            self.experiment.inject(fault, name)
        self._key.add_change(choice, [EVERYTHING])
        self.actors.wake()
        self.actors.wait_until_quiescent()
        self._record(choice, None, FAULT_TEXTS[fault], "clock")

    def _start_renewal(self, name: str) -> None:
        """Start the watchdog thread of an actor. It stops before it renews, so the holder may take steps first."""
        self.experiment.wake_watchdog(name)
        watchdog = self.experiment.watchdogs[name]
        self.actors.add(watchdog_of(name), lambda: f"{watchdog.tick():g}", watchdog, works_for=name).start()

    def _resume(self, actor: Actor) -> None:
        pending = cast("PendingStep", actor.pending)
        file, line = actor.file, actor.line
        if pending.where == "clock":
            if actor.wakes_at > self.environment.clock.now:
                self.environment.pass_time(actor.wakes_at - self.environment.clock.now)
            actor.touched = set()
        actor.steps += 1
        self._current = actor.name
        self._key.add_step(actor.name, pending)
        # Wake a sleeper only if something that it has touched may have changed. Otherwise it would only read the same
        # values again.
        sleepers = [other for other in self.actors.all() if other.asleep and other is not actor]
        sleepers = [other for other in sleepers if pending.writes & {*other.touched, EVERYTHING}]
        written = sorted(pending.writes) if sleepers and pending.where == "redis" else []
        before = self.environment.fingerprint(written)
        actor.resume()
        self.actors.wait_until_quiescent()
        actor.touched |= pending.reads | pending.writes
        if not written or self.environment.fingerprint(written) != before:
            for other in sleepers:
                other.asleep = False
        self._record(actor.name, actor.works_for or actor.name, pending.does, pending.where, file=file, line=line)

    def _crash(self, actor: Actor) -> None:
        self._key.add_change(f"crash {actor.name}", [POSTGRES])
        for thread in self.actors.renewing(actor.name):
            self.actors.kill(thread)
        self.experiment.crash(actor.name)
        self.actors.kill(actor)
        self.actors.wait_until_quiescent()
        self.actors.wake()
        self._record(f"crash {actor.name}", actor.name, "crashes", "process")

    def _let_time_pass(self, living: Sequence[Actor]) -> bool:
        """When all actors sleep or wait, let time pass until something can change. Return whether the run goes on."""
        sleeps = [actor.wakes_at for actor in living if actor.asleep]
        progress = len(living), tuple(self.history.inside), self._passes
        if sleeps and progress != self._progress_at_last_sleep:
            self._progress_at_last_sleep = progress
            seconds = max(0.0, min(sleeps) - self.environment.clock.now)
        elif not self._fault_happened or self._passes >= MAX_PASSES:
            who = " and ".join(actor.name for actor in living)
            self._conclude(("progress", CANNOT_ENTER[self._reason(living)].format(who=who)))
            return False
        else:
            self._passes += 1
            seconds = self._until_something_ends(living)
        self.environment.pass_time(seconds)
        self._key.add_change(f"time {seconds:.1f}", [EVERYTHING])
        self.actors.wake()
        self.actors.wait_until_quiescent()
        self._record("time", None, f"{seconds:.4g} s pass: no client can go on", "clock", forced=True)
        return True

    def _reason(self, living: Sequence[Actor]) -> str:
        if self._passes:
            return "passed"
        return (
            "expires" if self.environment.any_expires({name for actor in living for name in actor.touched}) else "never"
        )

    def _until_something_ends(self, living: Sequence[Actor]) -> float:
        left = self.environment.until_expiry()
        if left is not None and left > EXPIRY_MARGIN:
            return left - BEFORE_EXPIRY
        ends = [actor.wakes_at - self.environment.clock.now for actor in living if actor.listens_to is not None]
        moments = [moment for moment in (*ends, *([left] if left is not None else [])) if moment < math.inf]
        return max(0.0, min(moments)) + EXPIRY_MARGIN if moments else self.experiment.ttl

    def _offered(self, living: Sequence[Actor]) -> tuple[str, ...]:
        offered: list[str] = []
        for fault in self.faults:
            if fault in FAULTS_OF_AN_ACTOR:
                offered += [f"{fault} {actor.name}" for actor in living if self._can_hit(fault, actor)]
            elif self.experiment.offers(fault) and not self.actors.renewing():
                offered.append(fault)
        return tuple(offered)

    def _can_hit(self, fault: Fault, actor: Actor) -> bool:
        if actor.works_for:
            return False
        if fault == "crash":
            # A crash ends a process. A thread that waits for another thread of its process cannot crash alone.
            return not self.environment.waits_for_a_thread(actor)
        # A pause may hit a holder whose watchdog is about to renew: the pause stops that watchdog, too.
        renewing = {thread.works_for for thread in self.actors.renewing()}
        blocking = renewing - {actor.name} if fault == "pause" else renewing
        return self.experiment.offers(fault, actor.name) and not blocking

    def _record(
        self,
        choice: str,
        actor: str | None,
        does: str,
        where: Where,
        *,
        file: str = "",
        line: int = 0,
        forced: bool = False,
    ) -> None:
        if not forced:
            self.run.schedule.append(choice)
        if self.watch:
            inside, state = tuple(self.history.inside), self.experiment.state()
            answers, blocked = self.actors.answers(), self.actors.blocked()
            self.run.steps.append(Step(choice, actor, does, where, file, line, forced, answers, inside, blocked, state))

    def _conclude(self, violation: Violation | None) -> None:
        if violation is not None:
            self.run.broken, self.run.why = violation


def _choices(enabled: Sequence[Actor], faults: Sequence[str]) -> tuple[Choice, ...]:
    steps = [Choice(actor.name, actor.pending.does if actor.pending else "", is_fault=False) for actor in enabled]
    return (*steps, *(Choice(fault, FAULT_TEXTS[parse_fault(fault)[0]], is_fault=True) for fault in faults))
