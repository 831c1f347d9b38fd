"""One attempt of a stress run: clients in real threads and processes, without a scheduler that orders their steps.

A thread pauses for a random moment before each step, so the order of steps is left to the machine. At most one fault
happens in an attempt, before a random step. It may hit a server, the client that takes the step, or a waiting client.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import cast

from lab.claims.client import POLL, Client, Shared
from lab.claims.gate import Gate
from lab.explorer.actor import Actor
from lab.explorer.scheduler import BEFORE_EXPIRY, EXPIRY_MARGIN, MAX_PASSES
from lab.explorer.terms import FAULTS_OF_AN_ACTOR, Fault, Violation
from lab.sandbox.clock import TTL, VirtualClock
from lab.sandbox.sandbox import Sandbox
from lab.workloads.experiment import Experiment
from lab.workloads.registry import faults_of

PAUSES = (0.0, 0.0002, 0.001, 0.005)
"""Maximum pauses of a client before a step, in seconds. Each attempt picks a maximum at random."""
LOOKS = 5
"""Number of checks by each waiting client before time may pass. The run counts as stuck only after this number of
failed checks by each."""
STUCK_AFTER = 0.2
"""A run without a fault counts as stuck after this number of seconds without progress, if all clients wait."""
LIMIT = 30.0
"""Maximum duration of an attempt in seconds."""


class RunningClock(VirtualClock):
    """A clock that runs by itself, in monotonic seconds, and can be set."""

    def __init__(self) -> None:
        self._ahead = 0.0

    @property
    def now(self) -> float:
        """The time on this clock, in seconds."""
        return time.monotonic() + self._ahead

    @now.setter
    def now(self, seconds: float) -> None:
        self._ahead = seconds - time.monotonic()


@contextmanager
def running_clock(sandbox: Sandbox) -> Iterator[None]:
    """Inside the `with` block, let the clock of a sandbox run."""
    before = sandbox.clock
    sandbox.clock = RunningClock()
    try:
        yield
    finally:
        sandbox.clock = before


class Attempt:
    """Runs an experiment once without a scheduler.

    Args:
        experiment: the experiment. The clock of its sandbox must run.
        seed: seed of all random choices. The timing of the machine stays random.
        steps: number of steps of an earlier attempt. The fault is due before a random step from 1 to this number.
    """

    def __init__(self, experiment: Experiment, seed: str, steps: int) -> None:
        draws = random.Random(seed)  # noqa: S311 - no secret
        faults = faults_of(experiment.entry)
        self.experiment = experiment
        self.history = experiment.history
        self.sandbox = experiment.environment
        self.pause = draws.choice(PAUSES)
        self.steps = 0
        self.happened = False
        self.fault: Fault | None = draws.choice(faults) if faults else None
        self.clients: list[Client] = []
        self._due = draws.randrange(max(1, steps))  # an attempt may have ended before its first step
        self._mutex = threading.Lock()
        self._draws = draws
        self._reports: SimpleQueue[tuple[str, Future[bool] | None]] = SimpleQueue()

    def play(self) -> Violation | None:
        """Run the experiment to its end.

        Returns:
            The violation that a flawed rung claims, or any violation of a sound rung. None if there is none.
        """
        try:
            return self._play()
        finally:
            self.experiment.end()

    def _play(self) -> Violation | None:
        goal = self.experiment.entry.breaks
        jobs = self.experiment.begin()
        self.gate = Gate(len(jobs))
        barrier = threading.Barrier(len(jobs))
        shared = Shared(self.sandbox, self.gate, barrier, self._reports, self._reaches_step, self.pause)
        self.clients = [
            Client(
                name,
                job,
                shared,
                self.experiment.watchdogs[name],
                self._draws.random(),
                helper=name not in self.experiment.names,
            )
            for name, job in jobs.items()
        ]
        for client in self.clients:
            client.thread.start()
        try:
            stuck = self._watch()
        finally:
            self._end_clients()
        found = [violation for violation in (self.history.broken, stuck) if violation]
        if all(client.answer is not None and not client.ended for client in self.clients):
            found += self.experiment.verdict({client.name: client.answer or "" for client in self.clients})
        return next((violation for violation in found if goal in (None, violation[0])), None)

    def _reaches_step(self, client: Client) -> bool:
        """Make the fault happen if it is due. Return whether the fault happened.

        Called in a client's thread before each step and each wait.
        """
        with self._mutex:
            self.steps += 1
            if self.fault is None or self.happened or self.steps <= self._due:
                return False
            if self.fault == "crash":
                self.happened = True
        if self.fault == "crash":
            self._crash(client)
            return True
        with self.gate.closed(wait=self.history.holders_known) as quiet:
            if not quiet:
                return False
            happens: Future[bool] = Future()
            self._reports.put((client.name, happens))
            while not wait([happens], POLL).done:
                client.check_alive()
            return happens.result()

    def _crash(self, client: Client) -> None:
        """Crash this client or a waiting client. Called in this client's thread before a step."""
        waiting = self.history.holders_known and any(other.waits for other in self.clients)
        with self.gate.closed(wait=waiting) as quiet:
            # A waiting client takes no steps, so it would never crash by itself. Close the gate first: while it is
            # open, the wait may end at any moment.
            others = [other for other in self.clients if other.waits] if waiting and quiet else []
            victim = self._draws.choice([client, *others])
            victim.crashed = True
            self.experiment.crash(victim.name)

    def _hear(self) -> None:
        """Wait a moment for a report of a client. If the report asks for the fault, make the fault happen.

        This runs in the main thread, because only the main thread can start servers.
        """
        with suppress(Empty):
            name, happens = self._reports.get(timeout=POLL)
            if happens is not None:
                happens.set_result(self._inject(name))

    def _inject(self, name: str) -> bool:
        if self.happened or self.fault is None or not self.experiment.offers(self.fault, name):
            return False
        self.happened = True
        self.experiment.inject(self.fault, name if self.fault in FAULTS_OF_AN_ACTOR else "")
        return True

    def _watch(self) -> Violation | None:
        """Wait until all clients are done or the goal is reached. After a fault, let time pass while all clients wait.

        Return a violation of `progress` if clients never end. Otherwise return None.
        """
        began = since = time.monotonic()
        before, passes = self._progress(0), 0
        looks = self._looks()
        goal = self.experiment.entry.breaks
        while living := [client for client in self.clients if not client.done]:
            self._hear()
            if self.history.broken and goal in (None, self.history.broken[0]):
                return None
            now = time.monotonic()
            who = " and ".join(client.name for client in living)
            if now - began > LIMIT:
                return "progress", f"After {LIMIT:g} s {who} have not finished."
            if (progress := self._progress(passes)) != before:
                before, since, looks = progress, now, self._looks()
            if not all(client.waits and client.polls >= looks[client.name][0] + LOOKS for client in living):
                continue
            if self.happened and passes < MAX_PASSES:
                passes += self._let_time_pass(living)
            elif any(client.failures < looks[client.name][1] + LOOKS for client in living):
                continue  # a client that has just woken has not yet checked whether it may enter
            elif self.happened or now - since > STUCK_AFTER:
                return "progress", f"No client is inside, but {who} cannot enter."
        return None

    def _progress(self, passes: int) -> tuple[object, ...]:
        return sum(client.done for client in self.clients), tuple(self.history.inside), self.happened, passes

    def _looks(self) -> dict[str, tuple[int, int]]:
        return {client.name: (client.polls, client.failures) for client in self.clients}

    def _let_time_pass(self, living: list[Client]) -> bool:
        with self.gate.closed(wait=self.history.holders_known) as quiet:
            if not quiet or not all(client.waits for client in living):
                return False
            left = self.sandbox.until_expiry()
            if left is not None and left > EXPIRY_MARGIN:
                self.sandbox.pass_time(left - BEFORE_EXPIRY)
            else:
                self.sandbox.pass_time((left or TTL) + EXPIRY_MARGIN)
            return True

    def _end_clients(self) -> None:
        for client in self.clients:
            if not client.done:
                client.crashed = client.ended = True
                self.sandbox.terminate(cast("Actor", client))
        for client in self.clients:
            client.thread.join(LIMIT)
            if client.thread.is_alive():
                raise RuntimeError(f"Client {client.name} of a stress run does not end.")
