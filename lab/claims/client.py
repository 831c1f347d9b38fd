"""An actor whom nobody stops: what he says before each step is for others to make use of."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from lab.explorer.actor import CRASHED, Actor, Crash, become, current_actor
from lab.explorer.terms import PendingStep
from lab.sandbox import hooks

if TYPE_CHECKING:
    from lab.claims.stress import Try

LATE = 0.02
"""Seconds that somebody is late at most before whose step something has happened."""
LOOK = 0.001
"""Seconds between two looks at what a thread waits for."""
PATIENCE = 0.2
"""Seconds that the others have to come to their next step or to wait."""


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
        """In a thread that is quiet, or no client's: for the block, no other goes on.

        Args:
            wait: until the others are quiet too; otherwise they are not hindered.

        Yields:
            Whether they are. They are not where somebody else has closed it: he may wait for this thread.
        """
        if not wait:
            yield True
            return
        with self._condition:
            ours, self._passing = not self._passing, True
            quiet = ours and self._condition.wait_for(lambda: self._busy == 0, PATIENCE)
        try:
            yield quiet
        finally:
            if ours:
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
        looks: how often he has looked for what he waits for, or how late it is.
        in_vain: how often he has looked for what he waits for, and it was not there; or has slept until he may.
        session: his session with Postgres, if a lock of his has one.
        watchdog: renews his leases.
    """

    def __init__(self, name: str, job: Callable[[], str], attempt: Try, seed: float) -> None:
        self.name = name
        self.answer: str | None = None
        self.crashed = False
        self.cut = False
        self.done = False
        self.waits = False
        self.looks = 0
        self.in_vain = 0
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

    def stop(self, pending: PendingStep, at: tuple[str, int] | None = None) -> None:
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
        self.in_vain += 1

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
            self.in_vain += not heard

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
                    with as_nobody():
                        look()
                    self.looks += 1
            finally:
                self.waits = False
        self.goes_on_living()

    def goes_on_living(self) -> None:
        if self.crashed:
            raise Crash

    def _run(self) -> None:
        become(cast("Actor", self))
        try:
            self._try.barrier.wait()
            if self.name not in self._try.trial.names:
                # The clients come all at once. Whoever serves them comes when he comes.
                with self._try.gate.quiet():
                    time.sleep(self._random.uniform(0, LATE))
            self.answer = self._job()
        except BaseException as error:
            # Here, while what he was in the middle of is still there: it is cleared away when he is nobody any more.
            # On his way out a dead one may trip over what does not go out any more.
            self.answer = CRASHED if self.crashed else f"{type(error).__name__}: {error}"
            become(None)
        finally:
            become(None)
            if self.crashed:
                self._try.stage.dismiss(cast("Actor", self))
            self.done = True
            self._try.gate.leave()
            self._try.told.put((self.name, None))


@contextmanager
def as_nobody() -> Iterator[None]:
    """For the block, this thread is no actor's: what it asks of the servers is no step."""
    before = current_actor()
    become(None)
    try:
        yield
    finally:
        become(before)
