"""A program whose workers are the clients of a lock: `python -m lab.workloads.program FD` forks them when told.

A worker runs the rung's own code, says each step before he takes it, and waits until he is told to go on. Nobody else
is in his process, so what the rung keeps in memory is what a process has, and a crash is a crash.
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
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from lab.explorer.actor import become, place, where
from lab.explorer.terms import PendingStep
from lab.ladder.locks import LOCKS
from lab.ladder.locks.rung import LockRung
from lab.sandbox.sandbox import new_client
from lab.workloads.counter import sell

if TYPE_CHECKING:
    from lab.explorer.actor import Actor

Order = Literal["name", "fork", "end"]
Said = Literal["stops", "sleeps", "enters", "leaves", "done"]


@dataclass(frozen=True)
class Work:
    """What a worker is to do.

    Attributes:
        slug: the rung.
        lock: the name of the lock.
        redis_url: where the counter is.
        ttl: seconds.
        now: what the schedule's clock says.
        in_memory: whether to take and to free the lock are no commands to a server, and so steps by themselves.
    """

    slug: str
    lock: str
    redis_url: str
    ttl: float
    now: float
    in_memory: bool


class Worker:
    """The far end of an actor: what he asks of the schedule goes over a pipe.

    Args:
        pipe: to whoever relays it.
        now: what the schedule's clock says.
    """

    crashed = False

    def __init__(self, pipe: Connection[Any, Any], now: float) -> None:
        self._pipe = pipe
        self._now = now

    def clock(self) -> float:
        """The schedule's clock, which stands still while anybody takes a step."""
        return self._now

    def stop(self, pending: PendingStep, at: tuple[str, int] | None = None) -> None:
        """See `Actor.stop`."""
        self._ask("stops", pending, at or where())

    def sleep(self, seconds: float) -> None:
        """See `Actor.sleep`."""
        self._ask("sleeps", seconds, where())

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """He is inside, from the grant until his work is done."""
        self.tell("enters")
        yield
        self.tell("leaves")

    def tell(self, said: Said, *what: Any) -> None:
        """Say something that needs no answer."""
        self._pipe.send((said, *what))

    def _ask(self, said: Said, *what: Any) -> None:
        self.tell(said, *what)
        self._now = self._pipe.recv()


def main(descriptor: int) -> None:
    """Do what is ordered over this descriptor, until its other end is closed."""
    # A lease that is lost is what the rungs are there to show.
    logging.disable(logging.WARNING)
    with Connection(descriptor) as control:
        while True:
            try:
                order, what = control.recv()
            except EOFError:
                return
            if order == "name":
                # Here, and not when a worker first takes it: who is forked from now on inherits it.
                _new_lock(what[0], None, what[1])
            elif order == "fork":
                control.send(_fork(control, what))
            else:
                os.kill(what, signal.SIGKILL)
                os.waitpid(what, 0)
                control.send(None)


def _new_lock(slug: str, client: Any, name: str, **options: Any) -> LockRung:
    return cast("type[LockRung]", LOCKS[slug])(client, name, **options)


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
        client = new_client(work.redis_url)
        lock = _new_lock(work.slug, client, work.lock, ttl=work.ttl, sleep=worker.sleep, clock=worker.clock)
        if work.in_memory:
            _as_steps(lock, worker)
        try:
            answer = sell(client, lock, worker.at_work())
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        worker.tell("done", answer)
    finally:
        # And nothing of what the parent would do at its end.
        os._exit(0)


def _as_steps(lock: Any, worker: Worker) -> None:
    """Stop before what happens in memory too."""
    for name, does in (("take", "asks for the lock in his memory"), ("free", "frees the lock in his memory")):
        setattr(lock, name, _after_a_stop(getattr(lock, name), does, worker))


def _after_a_stop(method: Callable[[str], bool], does: str, worker: Worker) -> Callable[[str], bool]:
    at = place(inspect.getfile(method), inspect.getsourcelines(method)[1] + 1)

    def stops_before(owner: str) -> bool:
        worker.stop(PendingStep(does, "process"), at)
        return method(owner)

    return stops_before


if __name__ == "__main__":
    main(int(sys.argv[1]))
