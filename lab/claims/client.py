"""A client of a stress run: an actor that no scheduler stops. It pauses for a random moment before each step."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, cast

from lab.claims.gate import Gate
from lab.explorer.actor import Actor, become, current_actor
from lab.explorer.terms import CRASHED, Crash, Job, PendingStep
from lab.sandbox import hooks
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.watchdogs import SteppedWatchdog

LATE = 0.02
"""Maximum pause in seconds of a client after a fault at its step, and of a helper before it starts."""
POLL = 0.001
"""Seconds between two checks whether a client's wait is over."""


@dataclass(frozen=True)
class Shared:
    """Objects that the clients of one attempt share.

    Attributes:
        sandbox: the sandbox in which they run. Its clock must run.
        gate: the gate that a client passes at each step.
        barrier: the barrier at which all clients start together.
        reports: queue of pairs of a client's name and a future. The main thread makes the fault happen if it can, and
            puts into the future whether it happened. A client that is done reports None in place of the future.
        reaches_step: called by a client before each step and each wait. Returns whether a fault happened there.
        pause: maximum pause of a client before a step, in seconds.
    """

    sandbox: Sandbox
    gate: Gate
    barrier: threading.Barrier
    reports: SimpleQueue[tuple[str, Future[bool] | None]]
    reaches_step: Callable[[Client], bool]
    pause: float


class Client:
    """An actor that no scheduler stops. It has those methods of `Actor` that the sandbox's hooks call.

    Args:
        name: A, B and so on.
        job: the function that the client runs.
        shared: objects that the clients of the attempt share.
        watchdog: the watchdog that renews its leases.
        seed: seed of its pauses.
        helper: whether it works for the clients, for example as a queue's worker. A helper starts a moment later.

    Attributes:
        answer: the result of its job, once it is done.
        crashed: whether it has crashed.
        ended: whether it was ended by force after the run.
        done: whether it takes no further step.
        waits: whether it sleeps, or listens to a server.
        polls: how often it has checked whether its wait is over.
        failures: number of checks for an answer that found none, plus the number of sleeps that have ended. A client
            sleeps after a failed attempt.
        session: the Postgres session of its lock, if the lock has one.
    """

    def __init__(
        self, name: str, job: Job, shared: Shared, watchdog: SteppedWatchdog, seed: float, *, helper: bool = False
    ) -> None:
        self.name = name
        self.watchdog = watchdog
        self.answer: str | None = None
        self.crashed = False
        self.ended = False
        self.done = False
        self.waits = False
        self.polls = 0
        self.failures = 0
        self.session: Any = None
        self._job = job
        self._shared = shared
        self._helper = helper
        self._random = random.Random(seed)  # noqa: S311 - a pause, not a secret
        # Some locks use the thread's name in the owner text. In a real process the first thread has this name.
        self.thread = threading.Thread(target=self._run, name="MainThread", daemon=True)

    def clock(self) -> float:
        """Return the time on the sandbox's running clock."""
        return self._shared.sandbox.clock.now

    def stop(self, pending: PendingStep, at: tuple[str, int] | None = None) -> None:
        """Pause for a random moment. A fault may happen meanwhile. Called in the client's own thread.

        Raises:
            Crash: the client has crashed.
        """
        self.check_alive()
        with self._shared.gate.quiet():
            late = self._shared.reaches_step(self)
            time.sleep(self._random.uniform(0, LATE if late else self._shared.pause))
        self.check_alive()

    def sleep(self, seconds: float, at: tuple[str, int] | None = None) -> None:
        """Sleep on the sandbox's clock. Called in the client's own thread.

        Raises:
            Crash: the client has crashed.
        """
        until = self.clock() + seconds
        self._wait(lambda: time.sleep(min(POLL, max(0.0, until - self.clock()))), lambda: self.clock() >= until)
        self.failures += 1

    def listen(self, connection: Any, until: float) -> bool:
        """Wait for an answer until a deadline.

        Return whether the answer has arrived. Called in the client's thread. See `Actor.listen`.

        Raises:
            Crash: the client has crashed.
        """
        arrived = False

        def look() -> None:
            nonlocal arrived
            if not isinstance(connection, hooks.Notification):
                arrived = connection.can_read(timeout=POLL)
            elif not (arrived := connection.arrived()):
                time.sleep(POLL)
            self.failures += not arrived

        self._wait(look, lambda: arrived or self.clock() >= until)
        return arrived

    def _wait(self, look: Callable[[], None], over: Callable[[], bool]) -> None:
        self.check_alive()
        with self._shared.gate.quiet():
            self._shared.reaches_step(self)
            self.waits = True
            try:
                while not over():
                    self.check_alive()
                    with as_no_actor():
                        look()
                    self.polls += 1
            finally:
                self.waits = False
        self.check_alive()

    def check_alive(self) -> None:
        """Raise `Crash` if the client has crashed. Called in the client's own thread."""
        if self.crashed:
            raise Crash

    def _run(self) -> None:
        become(cast("Actor", self))
        try:
            self._shared.barrier.wait()
            if self._helper:
                with self._shared.gate.quiet():
                    time.sleep(self._random.uniform(0, LATE))
            self.answer = self._job()
        except BaseException as error:
            # The cleanup of a crashed client fails because its commands are not sent. The code under test is not to
            # blame.
            self.answer = CRASHED if self.crashed else f"{type(error).__name__}: {error}"
            # End the actor here. At the end of this handler, Python drops the exception and deletes objects of the
            # job. These objects may send commands.
            become(None)
        finally:
            become(None)
            if self.crashed:
                self._shared.sandbox.disconnect(cast("Actor", self))
            self.done = True
            self._shared.gate.leave()
            self._shared.reports.put((self.name, None))


@contextmanager
def as_no_actor() -> Iterator[None]:
    """Inside the `with` block, requests of the calling thread are not steps, as if it ran no actor."""
    before = current_actor()
    become(None)
    try:
        yield
    finally:
        become(before)
