"""One run: every actor stops before each step, and a chooser says who goes on or what happens."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, cast

from lab.explorer.actor import Actor, State
from lab.explorer.terms import EVERYTHING, FAULTS_OF_AN_ACTOR, POSTGRES, Fault, Invariant, PendingStep, Where
from lab.explorer.trace import Choice, Step
from lab.explorer.trace_equivalence import TraceKey
from lab.workloads.base import TICK, TTL, Trial

LONGEST = 400
"""Steps after which a run is cut: actors that only get in each other's way never end."""
PASSES = 8
"""How often time may pass because nobody can go on. A lock that does not free itself by then never will."""
ALMOST = 0.3
"""Seconds before an expiry at which those who poll look once more: what they see is rounded down to none."""
TOGETHER = 0.5
"""Seconds: what ends within that time of each other ends together, as the servers' own clocks go on meanwhile."""
LOOK = 0.002
"""Seconds after which a server is asked whether an actor who does not come back waits in it."""
PATIENCE = 20.0
"""Seconds without an answer of anybody after which the schedule itself is at fault."""


class Stuck(RuntimeError):
    """An actor neither stops nor waits in a server."""


class TooLong(RuntimeError):
    """The run has taken longer than it may."""


@dataclass
class SchedulingPoint:
    """A moment in which somebody may be chosen.

    Attributes:
        enabled: the actors that can take a step, the one who took the last step first.
        current: whoever took the last step.
        pending: the step that each enabled actor is about to take.
        fresh: those of them who have not taken any step yet.
        events: asks what may happen instead; it takes a look at the servers.
        key: what the trace so far has in common with every equivalent one.
    """

    enabled: tuple[str, ...]
    current: str | None
    pending: Mapping[str, PendingStep]
    fresh: frozenset[str]
    events: Callable[[], tuple[str, ...]]
    key: int


Chooser = Callable[[SchedulingPoint], str]
"""Says what comes next, or `STOP`."""


@dataclass
class Run:
    """What came of a schedule.

    Attributes:
        preemptions: how often somebody was stopped who could go on.
        events: how often something happened.
        ledger: the figures at the end, of a run that was watched.
    """

    schedule: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    broken: Invariant | None = None
    why: str = ""
    ledger: Mapping[str, int] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    preemptions: int = 0
    events: int = 0


class Scheduler:
    """Runs a trial once.

    Args:
        trial: what is done.
        choose: who goes next.
        events: what may happen, beside the actors' own steps.
        watch: keep what every step did, and the figures at the end, for people to look at. It costs a look at the
            servers for each.
        goal: the invariant that is to be broken; None: any.
        seconds: of the real time after which no further step is taken.
    """

    def __init__(
        self,
        trial: Trial,
        choose: Chooser,
        *,
        events: Collection[Fault] = (),
        watch: bool = False,
        goal: Invariant | None = None,
        seconds: float = math.inf,
    ) -> None:
        self.trial = trial
        self.choose = choose
        self.events = events
        self.watch = watch
        self.goal = goal
        self.until = time.monotonic() + seconds
        self.run = Run()
        self._told: SimpleQueue[Actor] = SimpleQueue()
        self._actors: dict[str, Actor] = {}
        self._current: str | None = None
        self._happened = False
        self._passes = 0
        self._napped: object = None
        self._key = TraceKey()

    def play(self) -> Run:
        """Run it to its end, and clear up.

        Raises:
            Stuck: an actor neither stops nor waits in a server.
            TooLong: it has taken longer than it may.
        """
        try:
            for name, job in self.trial.begin().items():
                self._actors[name] = Actor(name, job, self._told, self.trial.stage.clock, self.trial.watchdogs[name])
            for actor in self._actors.values():
                actor.begin()
                self._settle()
            while self._step():
                pass
            answers = self._answers()
            self.run.answers = answers
            if self.run.broken is None and not self.run.choices:
                found = [*filter(None, [self.trial.broken]), *self.trial.verdict(answers)]
                found.sort(key=lambda broken: broken[0] != self.goal)
                self._judge(next(iter(found), None))
            if self.watch:
                self.run.ledger = self.trial.ledger(answers)
            return self.run
        finally:
            self._clear_up()
            self.trial.end()

    def _step(self) -> bool:
        """Let one thing happen. Returns whether the run goes on."""
        if time.monotonic() > self.until:
            raise TooLong
        living = [actor for actor in self._actors.values() if actor.state is not State.DONE]
        if not living:
            return False
        if self.trial.broken and self.goal in (None, self.trial.broken[0]):
            self._judge(self.trial.broken)
            return False
        if len(self.run.schedule) >= LONGEST:
            self._judge(("progress", f"After {LONGEST} steps nobody has come to an end."))
            return False
        enabled = [actor for actor in living if actor.state is State.STOPPED and not actor.asleep]
        if not enabled:
            return self._nobody_can(living)
        enabled.sort(key=lambda actor: (actor.name != self._current, actor.name))
        asleep = [actor.name for actor in living if actor.state is State.STOPPED and actor.asleep]
        names = tuple(actor.name for actor in enabled)
        point = SchedulingPoint(
            names,
            self._current,
            {actor.name: actor.pending for actor in enabled if actor.pending},
            frozenset(actor.name for actor in enabled if actor.steps == 0 and not actor.works_for),
            lambda: self._offered(living),
            self._key.value(self._current, asleep),
        )
        choice = self.choose(point)
        if choice == STOP:
            self.run.choices = self._choices(enabled, point.events())
            return False
        if choice not in names:
            self.run.events += 1
        elif choice != self._current and self._current in names:
            self.run.preemptions += 1
        self._do(choice)
        return True

    def _do(self, choice: str) -> None:
        actor = self._actors.get(choice)
        if actor is not None:
            self._go(actor)
            return
        kind, who = event_of(choice)
        if kind == "crash":
            self._crash(self._actors[who])
            return
        self._happened = True
        if kind == "tick":
            self._wakes_the_watchdog(who)
        else:
            self.trial.happens(kind, who)
        self._key.happened(choice, [EVERYTHING])
        self._wake()
        self._settle()
        self._note(choice, None, EVENTS[kind], "clock", forced=False)

    def _wakes_the_watchdog(self, who: str) -> None:
        """It is a thread of its own, which stops before it renews: until then others go on, and its holder too."""
        self.trial.events += 1
        self.trial.stage.pass_time(TICK)
        watchdog = self.trial.watchdogs[who]
        thread = Actor(
            watchdog_of(who),
            lambda: f"{watchdog.tick():g}",
            self._told,
            self.trial.stage.clock,
            watchdog,
            works_for=who,
        )
        self._actors[thread.name] = thread
        thread.begin()

    def _go(self, actor: Actor) -> None:
        pending = cast("PendingStep", actor.pending)
        file, line = actor.file, actor.line
        if pending.where == "clock" and actor.wakes_at > self.trial.stage.clock.now:
            self.trial.stage.pass_time(actor.wakes_at - self.trial.stage.clock.now)
        if pending.where == "clock":
            actor.touched = set()
        actor.steps += 1
        self._current = actor.name
        self._key.stepped(actor.name, pending)
        # To look again at what nobody has changed since shows what it showed, and a refusal changes nothing.
        sleepers = [other for other in self._actors.values() if other.asleep and other is not actor]
        sleepers = [other for other in sleepers if pending.writes & {*other.touched, EVERYTHING}]
        written = sorted(pending.writes) if sleepers and pending.where == "redis" else []
        before = self.trial.stage.looks(written)
        actor.go()
        self._settle()
        actor.touched |= pending.reads | pending.writes
        if not written or self.trial.stage.looks(written) != before:
            for other in sleepers:
                other.asleep = False
        self._note(actor.name, actor.works_for or actor.name, pending.does, pending.where, file=file, line=line)

    def _crash(self, actor: Actor) -> None:
        self._happened = True
        self._key.happened(f"crash {actor.name}", [POSTGRES])
        for thread in self._in_the_middle(actor.name):
            self._kill(thread)
        self.trial.dies(actor)
        self._kill(actor)
        self._settle()
        self._wake()
        self._note(f"crash {actor.name}", actor.name, "crashes", "process")

    def _kill(self, actor: Actor) -> None:
        waits = actor.state in (State.RUNNING, State.BLOCKED) and actor.listens_to is None
        actor.crash()
        if waits:
            self.trial.stage.cut(actor)
        until = time.monotonic() + PATIENCE
        while actor.state is not State.DONE:
            self._hear(until)
        self.trial.stage.dismiss(actor)

    def _nobody_can(self, living: Sequence[Actor]) -> bool:
        """Everybody sleeps or waits: let time pass until something can change."""
        stage = self.trial.stage
        naps = [actor.wakes_at for actor in living if actor.asleep]
        who = " and ".join(actor.name for actor in living)
        progress = len(living), tuple(self.trial.inside), self._passes
        if naps and progress != self._napped:
            self._napped = progress
            seconds = max(0.0, min(naps) - stage.clock.now)
        elif not self._happened or self._passes >= PASSES:
            self._judge(("progress", f"Nobody is inside, and still {who} cannot enter: {self._why_not(living)}"))
            return False
        else:
            self._passes += 1
            seconds = self._until_something_ends(living)
        stage.pass_time(seconds)
        self._key.happened(f"time {seconds:.1f}", [EVERYTHING])
        self._wake()
        self._settle()
        self._note("time", None, f"{seconds:.4g} s pass: nobody can go on", "clock", forced=True)
        return True

    def _why_not(self, living: Sequence[Actor]) -> str:
        """What keeps them out: where time is all that they would need, it is no lock that stays for ever."""
        if self._passes:
            return WAITS["passed"]
        stage = self.trial.stage
        servers: tuple[Any, ...] = stage.redis, *stage.nodes.values()
        waited_for = {name for actor in living for name in actor.touched}
        expires = any(server.pttl(name) > 0 for server in servers for name in waited_for)
        return WAITS["expires" if expires else "never"]

    def _until_something_ends(self, living: Sequence[Actor]) -> float:
        stage = self.trial.stage
        left = stage.until_expiry()
        if left is not None and left > TOGETHER:
            return left - ALMOST
        ends = [actor.wakes_at - stage.clock.now for actor in living if actor.listens_to is not None]
        moments = [moment for moment in (*ends, *([left] if left is not None else [])) if moment < math.inf]
        return max(0.0, min(moments)) + TOGETHER if moments else TTL

    def _wake(self) -> None:
        """Something has happened to all: who sleeps may look again, and whose time is over does."""
        now = self.trial.stage.clock.now
        for actor in self._actors.values():
            actor.asleep = False
            if actor.listens_to is not None and actor.wakes_at <= now:
                actor.rings = True

    def _settle(self) -> None:
        """Return when everybody has stopped, is done, or waits in a server for somebody else."""
        stage = self.trial.stage
        until = time.monotonic() + PATIENCE
        while True:
            while running := [actor for actor in self._begun() if actor.state is State.RUNNING]:
                if not self._hear(until, LOOK):
                    for actor in running:
                        if actor.state is State.RUNNING and stage.is_blocked(actor):
                            actor.seen(waiting=True)
            # Whoever waited may have been waked by what the others did.
            waiting = [actor for actor in self._begun() if actor.state in WAITING]
            if len(waiting) == sum(map(self._still_waits, waiting)):
                return

    def _still_waits(self, actor: Actor) -> bool:
        waits = not actor.rings and self.trial.stage.is_blocked(actor)
        actor.seen(waiting=waits)
        return waits

    def _begun(self) -> list[Actor]:
        return [actor for actor in self._actors.values() if actor.thread.ident]

    def _hear(self, until: float, seconds: float = 0.05) -> bool:
        try:
            self._told.get(timeout=seconds)
        except Empty:
            if time.monotonic() > until:
                stacks = "".join(map(_stack, self._begun()))
                raise Stuck(f"Somebody has not stopped, and no server says why: {stacks}") from None
            return False
        return True

    def _offered(self, living: Sequence[Actor]) -> tuple[str, ...]:
        offered: list[str] = []
        for event in self.events:
            if event in FAULTS_OF_AN_ACTOR:
                offered += [f"{event} {actor.name}" for actor in living if self._may(event, actor)]
            elif self.trial.offers(event) and not self._in_the_middle():
                offered.append(event)
        return tuple(offered)

    def _may(self, event: Fault, actor: Actor) -> bool:
        """Whether it can happen to this actor."""
        if actor.works_for:
            return False
        if event == "crash":
            # A thread that waits for another of its process cannot die alone.
            return not actor.waits_in_this_process()
        # A watchdog that is paused with its holder may be in the middle of renewing. The others get their turns.
        busy = {thread.works_for for thread in self._in_the_middle()}
        return self.trial.offers(event, actor.name) and not (busy - {actor.name} if event == "pause" else busy)

    def _in_the_middle(self, of: str = "") -> list[Actor]:
        """The watchdogs that are about to renew, of one actor or of all."""
        threads = [actor for actor in self._actors.values() if actor.works_for and actor.state is not State.DONE]
        return [thread for thread in threads if of in ("", thread.works_for)]

    def _choices(self, enabled: Sequence[Actor], events: Sequence[str]) -> tuple[Choice, ...]:
        steps = [Choice(actor.name, actor.pending.does if actor.pending else "", event=False) for actor in enabled]
        return (*steps, *(Choice(event, EVENTS[event_of(event)[0]], event=True) for event in events))

    def _note(
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
            blocked = tuple(other.name for other in self._actors.values() if other.state is State.BLOCKED)
            self.run.steps.append(
                Step(
                    choice,
                    actor,
                    does,
                    where,
                    file,
                    line,
                    forced,
                    self._answers(),
                    tuple(self.trial.inside),
                    blocked,
                    self.trial.state(),
                )
            )

    def _answers(self) -> dict[str, str]:
        clients = [actor for actor in self._actors.values() if not actor.works_for]
        return {actor.name: actor.answer for actor in clients if actor.answer is not None}

    def _judge(self, broken: tuple[Invariant, str] | None) -> None:
        if broken is not None:
            self.run.broken, self.run.why = broken

    def _clear_up(self) -> None:
        living = [actor for actor in self._begun() if actor.state is not State.DONE]
        for actor in living:  # who waits for one of these must not go on when that one dies
            actor.crashed = True
        for actor in living:
            self._kill(actor)


WAITS = {
    "never": "nothing that they wait for will ever come.",
    "expires": "not before the TTL is over.",
    "passed": "not even time has helped.",
}

WAITING = (State.LISTENING, State.BLOCKED)

STOP = "stop"
"""The chooser's word for: no further, show me what could come next."""

EVENTS: Mapping[Fault, str] = {
    "late release": "The TTL passes before the release",
    "tick": "A third of the TTL passes, and his watchdog wakes to renew",
    "expiry": "The TTL passes while somebody works, and the watchdogs get their turns",
    "crash": "The process dies before its next step, and its connections drop",
    "pause": "He is paused for longer than the TTL, and his watchdog with him",
    "restart": "The server restarts",
    "failover": "The server is lost, and its replica, which is behind, takes its place",
    "clock jump": "The server's clock is set ahead by more than the TTL",
}


def event_of(choice: str) -> tuple[Fault, str]:
    """What happens by a choice that is no actor's step, and to whom; empty: to all."""
    kind, _, who = choice.rpartition(" ")
    return (kind, who) if kind in FAULTS_OF_AN_ACTOR else (cast("Fault", choice), "")


def watchdog_of(who: str) -> str:
    """The name, in a schedule, of an actor's watchdog that wakes."""
    return f"{who}'s watchdog"


def _stack(actor: Actor) -> str:
    frame = sys._current_frames().get(actor.thread.ident or 0)
    return f"{actor!r}\n{''.join(traceback.format_stack(frame)) if frame else ''}"
