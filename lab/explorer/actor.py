"""An actor: a thread that stops before each of its steps until it is told to go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from enum import Enum, auto
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lab.explorer.terms import PendingStep
from locking.local import ProcessLock, Turn
from locking.renewal import Watchdog

ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN = tuple(str(ROOT / room) for room in ("lab/ladder", "locking", "inventory"))
"""The rooms whose lines are shown, the first of them before the others."""
THREADING = threading.__file__


CRASHED = "crashed"
"""The answer of an actor who died."""


_here = threading.local()


def become(actor: Actor | None) -> None:
    """Make the calling thread an actor's; None: it is no actor's any more."""
    _here.actor = actor


def current_actor() -> Actor | None:
    """The actor whose thread is calling, if it is one's."""
    return getattr(_here, "actor", None)


def stop_before(step: PendingStep) -> None:
    """Stop the calling thread, if it is an actor's, until the scheduler lets it go on.

    Raises:
        Crash: the actor has crashed.
    """
    if (actor := current_actor()) is not None:
        actor.stop(step)


class Crash(BaseException):
    """The actor is dead: neither this step nor a later one is taken."""


class State(Enum):
    """What an actor does."""

    RUNNING = auto()
    STOPPED = auto()
    LISTENING = auto()
    BLOCKED = auto()
    DONE = auto()


class Actor:
    """Somebody who does one job.

    Args:
        name: A, B, ….
        job: what he does; it returns what he is told.
        told: where the actor reports that he has stopped or is done.
        clock: the schedule's.
        watchdog: renews his leases.
        works_for: the name of the actor whose watchdog this is; empty: it is none.

    Attributes:
        pending: the step before which he has stopped, or which he is taking.
        file, line: where in the rung he is; empty and 0 when he is in none.
        answer: what he was told, when he is done.
        crashed: whether he is dead.
        asleep: whether his next step is to go on after a sleep, and nothing has happened since it began.
        clients: his connections to Redis.
        session: his session with Postgres, if a lock of his has one.
    """

    def __init__(
        self,
        name: str,
        job: Callable[[], str],
        told: SimpleQueue[Actor],
        clock: Callable[[], float],
        watchdog: Watchdog,
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
        self.rings = False
        self.listens_to: Any = None
        self.session: Any = None
        self._job = job
        self._told = told
        # A plain lock, and no semaphore, in which a thread looks like one that waits for another.
        self._go = threading.Lock()
        self._go.acquire()
        self._mutex = threading.Lock()
        # On every machine the first thread has this name.
        self.thread = threading.Thread(target=self._run, name="MainThread", daemon=True)

    def __repr__(self) -> str:
        return f"<Actor {self.name}, {self.state.name.lower()}, {self.pending and self.pending.does}>"

    def begin(self) -> None:
        """Start, as far as the first step."""
        self.thread.start()

    def go(self) -> None:
        """Take the step, or look up from what he listens to."""
        with self._mutex:
            self._goes_on()

    def crash(self) -> None:
        """Die before the next step. What is cleared away on the way out reaches no server."""
        with self._mutex:
            self.crashed = True
            if self.state is State.STOPPED or self.listens_to is not None:
                self._goes_on()

    def _goes_on(self) -> None:
        self.state, self.listens_to = State.RUNNING, None
        self.asleep = False
        self._go.release()

    def goes_on_living(self) -> None:
        """In the actor's own thread: return, unless he is dead.

        Raises:
            Crash: he is.
        """
        if self.crashed:
            raise Crash

    def stop(self, pending: PendingStep, at: tuple[str, int] | None = None) -> None:
        """In the actor's own thread: wait until he is told to go on.

        Args:
            pending: the step that he is about to take.
            at: the file and the line of the rung that do it; None: those that this thread is in.
        """
        self.pending = pending
        self.file, self.line = at or where()
        self._tell(State.STOPPED)
        self._go.acquire()
        self.goes_on_living()

    def sleep(self, seconds: float, at: tuple[str, int] | None = None) -> None:
        """In the actor's own thread: sleep for so long at least, on the clock of the schedule."""
        self.asleep, self.wakes_at = True, self.clock() + seconds
        self.stop(PendingStep(f"sleeps {seconds:g} s", "clock", seconds=seconds), at)

    def listen(self, connection: Any, until: float) -> bool:
        """In the actor's own thread: wait until there is an answer to what blocks, or the time is over.

        Args:
            connection: his, to Redis, on which a blocking command was sent; or a `Bell`.
            until: when he looks up from it, on the clock of the schedule.

        Returns:
            Whether there is an answer.
        """
        self.wakes_at, self.rings = until, False
        self._tell(State.LISTENING, connection)
        self._go.acquire()
        self.goes_on_living()
        return not self.rings

    def waits_in_this_process(self) -> bool:
        """Whether his thread waits for another thread of this process: the lock that it sleeps on is not released."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None:
            return False
        code = frame.f_code
        if code.co_filename == THREADING and code.co_name == "wait":
            waiter = frame.f_locals.get("waiter")
            asks = frame.f_back and frame.f_back.f_back  # for an event; a thread that starts another waits for it too
            ours = asks is not None and asks.f_code.co_filename.startswith(str(ROOT / "inventory"))
            return ours and waiter is not None and waiter.locked()
        if code is Turn.comes.__code__:
            turn = frame.f_locals["self"]
            return frame.f_locals.get("first") is False and turn._bell.locked()
        if code is ProcessLock.acquire.__code__:
            return "pause" in frame.f_locals and _is_locked(frame.f_locals["self"]._path)
        return False

    def seen(self, *, waiting: bool) -> None:
        """Note what his server says of him, unless he has stopped since."""
        with self._mutex:
            if waiting and self.state in (State.RUNNING, State.LISTENING):
                self.state = State.BLOCKED
            elif not waiting and self.listens_to is not None:
                self._goes_on()
            elif not waiting and self.state is State.BLOCKED:
                self.state = State.RUNNING

    def _tell(self, state: State, listens_to: Any = None) -> None:
        with self._mutex:
            if self.crashed and state is not State.DONE:
                raise Crash
            self.state, self.listens_to = state, listens_to
        self._told.put(self)

    def _run(self) -> None:
        become(self)
        try:
            self.answer = self._job()
        except Crash:
            self.answer = CRASHED
        except BaseException as error:
            self.error = error
            # On his way out a dead one may trip over what does not go out any more.
            self.answer = CRASHED if self.crashed else f"{type(error).__name__}: {error}"
        finally:
            become(None)
            self._tell(State.DONE)


def where() -> tuple[str, int]:
    """The file, below the project's folder, and the line of the rung that this thread is in; empty and 0: in none."""
    found = "", 0
    best = len(SHOWN)
    frame = sys._getframe(2)
    while frame is not None and best:
        path = frame.f_code.co_filename
        for rank, room in enumerate(SHOWN[:best]):
            if path.startswith(room) and not path.endswith("/rung.py"):
                best = rank
                found = place(path, frame.f_lineno)
                break
        frame = frame.f_back  # type: ignore[assignment]
    return found


def place(path: str, line: int) -> tuple[str, int]:
    """A line of a file, as a step names it."""
    return path[len(str(ROOT)) + 1 :], line


def _is_locked(path: Path) -> bool:
    """Whether somebody has locked a file, as the kernel sees it."""
    with path.open("a") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return True
    return False
