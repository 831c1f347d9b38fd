"""A program whose forked workers are the clients of a lock: `python -m lab.workloads.program FD`.

A worker runs the lock's own code. Before each step, it reports the step and waits until it may go on. The worker is a
real process with its own memory, and its crash is the death of a real process.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from lab.explorer.actor import become
from lab.explorer.source_line import current_line, relative_line
from lab.explorer.terms import PendingStep
from lab.ladder.locks.rung import LockRung
from lab.sandbox.redis_database import stepping_client
from lab.workloads.counter import sell

if TYPE_CHECKING:
    from lab.explorer.actor import Actor

Order = Literal["name", "fork", "end"]
Report = Literal["stops", "sleeps", "enters", "leaves", "done"]


@dataclass(frozen=True)
class Work:
    """The job of a worker.

    Attributes:
        rung: the class of the lock, as `module:class`.
        lock: name of the lock.
        redis_url: URL of the Redis with the counter.
        ttl: TTL of the lock, in seconds.
        now: the time on the schedule's clock.
        in_memory: whether the lock is in memory. Its acquire and release send no command, so each of them is made a
            step.
    """

    rung: str
    lock: str
    redis_url: str
    ttl: float
    now: float
    in_memory: bool


class Worker:
    """Replaces the actor in the worker's process, and passes calls on over a pipe.

    Args:
        pipe: the pipe to the thread that relays the calls.
        now: the time on the schedule's clock.
    """

    crashed = False

    def __init__(self, pipe: Connection[Any, Any], now: float) -> None:
        self._pipe = pipe
        self._now = now

    def clock(self) -> float:
        """Return the time on the schedule's clock, which stands still during a step."""
        return self._now

    def stop(self, pending: PendingStep, at: tuple[str, int] | None = None) -> None:
        """Report the next step, and wait until the worker may take it."""
        self._ask("stops", pending, at or current_line())

    def sleep(self, seconds: float) -> None:
        """Sleep for at least this many seconds on the schedule's clock."""
        self._ask("sleeps", seconds, current_line())

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Report that the client is in the critical section during the `with` block."""
        self.tell("enters")
        yield
        self.tell("leaves")

    def tell(self, report: Report, *arguments: Any) -> None:
        """Send a report that needs no answer."""
        self._pipe.send((report, *arguments))

    def _ask(self, report: Report, *arguments: Any) -> None:
        self.tell(report, *arguments)
        self._now = self._pipe.recv()


def main(descriptor: int) -> None:
    """Carry out the commands that arrive on a connection, until the other process closes it.

    Args:
        descriptor: file descriptor of the connection.
    """
    # Do not log lost leases: flawed locks lose them on purpose.
    logging.disable(logging.WARNING)
    with Connection(descriptor) as control:
        while True:
            try:
                order, argument = control.recv()
            except EOFError:
                return
            if order == "name":
                # Create the lock before the workers are forked, so that they inherit it.
                _new_lock(argument[0], None, argument[1])
            elif order == "fork":
                control.send(_fork(control, argument))
            else:
                os.kill(argument, signal.SIGKILL)
                os.waitpid(argument, 0)
                control.send(None)


def _new_lock(rung: str, client: Any, name: str, **options: Any) -> LockRung:
    return cast("type[LockRung]", resolve_name(rung))(client, name, **options)


def _fork(control: Connection[Any, Any], work: Work) -> int:
    descriptor = recv_handle(control)
    pid = os.fork()
    if not pid:
        control.close()
        _work(work, Connection(descriptor))
    os.close(descriptor)
    return pid


def _work(work: Work, pipe: Connection[Any, Any]) -> NoReturn:
    try:
        worker = Worker(pipe, work.now)
        become(cast("Actor", worker))
        client = stepping_client(work.redis_url)
        lock = _new_lock(work.rung, client, work.lock, ttl=work.ttl, sleep=worker.sleep, clock=worker.clock)
        if work.in_memory:
            _as_steps(lock, worker)
        try:
            answer = sell(client, lock, worker.inside())
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        worker.tell("done", answer)
    finally:
        # Skip the exit handlers that the worker has inherited from its parent process.
        os._exit(0)


def _as_steps(lock: Any, worker: Worker) -> None:
    """Turn the acquire and the release of a lock in memory into steps."""
    for name, does in (("take", "asks for the lock in its memory"), ("free", "frees the lock in its memory")):
        setattr(lock, name, _after_a_stop(getattr(lock, name), does, worker))


def _after_a_stop(method: Callable[[str], bool], does: str, worker: Worker) -> Callable[[str], bool]:
    at = relative_line(inspect.getfile(method), inspect.getsourcelines(method)[1] + 1)

    def stop_first(owner: str) -> bool:
        worker.stop(PendingStep(does, "process"), at)
        return method(owner)

    return stop_first


if __name__ == "__main__":
    main(int(sys.argv[1]))
