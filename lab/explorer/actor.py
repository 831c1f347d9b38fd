"""An actor: a thread, usually a client, that stops before each of its steps until the scheduler resumes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from queue import SimpleQueue
from typing import Any

from lab.explorer.source_line import current_line
from lab.explorer.terms import CRASHED, Crash, Job, PendingStep

_thread = threading.local()


def become(actor: Actor | None) -> None:
    """Record that the calling thread runs this actor, or no actor if `actor` is None."""
    _thread.actor = actor


def current_actor() -> Actor | None:
    """Return the actor that the calling thread runs, or None."""
    return getattr(_thread, "actor", None)


def stop_before(step: PendingStep) -> None:
    """If the calling thread runs an actor, stop it until the scheduler resumes it.

    Raises:
        Crash: the actor has crashed.
    """
    if (actor := current_actor()) is not None:
        actor.stop(step)


class State(Enum):
    """The state of an actor."""

    RUNNING = auto()
    STOPPED = auto()
    LISTENING = auto()
    BLOCKED = auto()
    DONE = auto()


class Actor:
    """A thread that does one job and stops before each of its steps.

    Args:
        name: A, B and so on.
        job: the function that the thread runs.
        reports: queue in which the actor reports that it has stopped, listens or is done.
        clock: the clock of the schedule.
        watchdog: the watchdog that renews the actor's leases.
        works_for: the actor whose watchdog thread this is. Empty for clients and helpers.

    Attributes:
        pending: the step before which it has stopped, or which it is taking.
        file, line: the line of the code under test that it runs. Empty and 0 outside of that code.
        answer: the result of its job, once it is done.
        crashed: whether it has crashed.
        asleep: whether it sleeps and is not enabled. False after a fault, after time has passed, or when data that it
            has touched may have changed.
        wakes_at: when its sleep or its wait for an answer ends, on the schedule's clock.
        touched: the names that it has read or written since its last sleep.
        steps: number of steps that it has taken.
        timed_out: whether its wait for an answer has ended by timeout, on the schedule's clock.
        listens_to: the connection or `Notification` that it waits for, or None.
        session: the Postgres session of its lock, if the lock has one.
    """

    def __init__(
        self,
        name: str,
        job: Job,
        reports: SimpleQueue[Actor],
        clock: Callable[[], float],
        watchdog: Any,
        works_for: str = "",
    ) -> None:
        self.name = name
        self.clock = clock
        self.watchdog = watchdog
        self.works_for = works_for
        self.state = State.RUNNING
        self.pending: PendingStep | None = None
        self.file, self.line = "", 0
        self.answer: str | None = None
        self.error: BaseException | None = None
        self.crashed = False
        self.asleep = False
        self.wakes_at = 0.0
        self.touched: set[str] = set()
        self.steps = 0
        self.timed_out = False
        self.listens_to: Any = None
        self.session: Any = None
        self._job = job
        self._reports = reports
        # Locked while the actor has to wait. `_resume` releases it; `stop` and `listen` acquire it again.
        self._go = threading.Lock()
        self._go.acquire()
        self._mutex = threading.Lock()
        # Some locks use the thread's name in the owner text. In a real process the first thread has this name.
        self.thread = threading.Thread(target=self._run, name="MainThread", daemon=True)

    def __repr__(self) -> str:
        return f"<Actor {self.name}, {self.state.name.lower()}, {self.pending and self.pending.does}>"

    def start(self) -> None:
        """Start the thread. It runs until it stops before its first step."""
        self.thread.start()

    def resume(self) -> None:
        """Let the actor take its pending step, or end its wait for an answer."""
        with self._mutex:
            self._resume()

    def crash(self) -> None:
        """Crash the actor before its next step. The commands of its cleanup code reach no server."""
        with self._mutex:
            self.crashed = True
            if self.state is State.STOPPED or self.listens_to is not None:
                self._resume()

    def _resume(self) -> None:
        self.state, self.listens_to = State.RUNNING, None
        self.asleep = False
        self._go.release()

    def check_alive(self) -> None:
        """Raise `Crash` if the actor has crashed. Called in the actor's own thread."""
        if self.crashed:
            raise Crash

    def stop(self, pending: PendingStep, at: tuple[str, int] | None = None) -> None:
        """Wait until the scheduler resumes the actor. Called in the actor's own thread.

        Args:
            pending: the step that the actor is about to take.
            at: the file and line that run the step. By default, the line that this thread runs now.

        Raises:
            Crash: the actor has crashed.
        """
        self.pending = pending
        self.file, self.line = at or current_line()
        self._report(State.STOPPED)
        self._go.acquire()
        self.check_alive()

    def sleep(self, seconds: float, at: tuple[str, int] | None = None) -> None:
        """Sleep for at least this many seconds on the schedule's clock. Called in the actor's own thread."""
        self.asleep, self.wakes_at = True, self.clock() + seconds
        self.stop(PendingStep(f"sleeps {seconds:g} s", "clock", seconds=seconds), at)

    def listen(self, connection: Any, until: float) -> bool:
        """Wait until an answer arrives or a deadline passes. Called in the actor's own thread.

        Args:
            connection: the connection to Redis on which a blocking command was sent, or a `Notification`.
            until: the deadline, on the schedule's clock.

        Returns:
            Whether an answer has arrived.
        """
        self.wakes_at, self.timed_out = until, False
        self._report(State.LISTENING, connection)
        self._go.acquire()
        self.check_alive()
        return not self.timed_out

    def mark_blocked(self, *, blocked: bool) -> None:
        """Record whether the actor waits in a server. If it listens and need not wait any more, resume it.

        Do nothing if the actor has stopped in the meantime.
        """
        with self._mutex:
            if blocked and self.state in (State.RUNNING, State.LISTENING):
                self.state = State.BLOCKED
            elif not blocked and self.listens_to is not None:
                self._resume()
            elif not blocked and self.state is State.BLOCKED:
                self.state = State.RUNNING

    def _report(self, state: State, listens_to: Any = None) -> None:
        with self._mutex:
            if self.crashed and state is not State.DONE:
                raise Crash
            self.state, self.listens_to = state, listens_to
        self._reports.put(self)

    def _run(self) -> None:
        become(self)
        try:
            self.answer = self._job()
        except Crash:
            self.answer = CRASHED
        except BaseException as error:
            self.error = error
            # The cleanup of a crashed actor fails because its commands are not sent. The code under test is not to
            # blame.
            self.answer = CRASHED if self.crashed else f"{type(error).__name__}: {error}"
        finally:
            become(None)
            self._report(State.DONE)
