"""Clients that are processes: forked workers of a program. For each, a thread in this process relays its steps."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, cast

from lab.checkers.counter import STOCK, UNITS
from lab.explorer.actor import Actor, current_actor
from lab.explorer.source_line import ROOT
from lab.explorer.terms import Job
from lab.sandbox.clock import TTL
from lab.workloads.lock import LockWorkload
from lab.workloads.program import Order, Work

_numbers = count(1)


class Program:
    """A running `lab.workloads.program`. It ends when it is closed, or when this process dies."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lab.workloads.program", str(far.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
                start_new_session=True,
            )
        self._control: Connection[Any, Any] = Connection(near.detach())
        self._mutex = threading.Lock()

    def name(self, rung: str, lock: str) -> None:
        """Make the program create a lock, before it forks the workers that use the lock."""
        self._order("name", (rung, lock))

    def fork(self, work: Work) -> tuple[int, Connection[Any, Any]]:
        """Make the program fork a worker.

        Returns:
            The process id of the worker, and the pipe on which it reports its steps.
        """
        near, far = socket.socketpair()
        with far, self._mutex:
            self._order("fork", work)
            send_handle(self._control, far.fileno(), self._process.pid)
            return self._control.recv(), Connection(near.detach())

    def end(self, worker: int) -> None:
        """Kill a worker if it still runs. Return when it is gone."""
        with self._mutex:
            self._order("end", worker)
            self._control.recv()

    def close(self) -> None:
        """End the program. Return when it has ended."""
        self._control.close()
        self._process.wait()

    def _order(self, order: Order, argument: Any) -> None:
        self._control.send((order, argument))


class ProcessWorkload(LockWorkload):
    """Clients that are processes forked by one program, like the workers of a web server."""

    in_memory = False
    """Whether the lock is in the memory of the processes."""

    def prepare(self) -> Mapping[str, Job]:
        self.sandbox.redis.set(STOCK, UNITS)
        # Use a new name each time: a lock in memory stays locked if a worker was killed while it held the lock.
        lock = f"stock {next(_numbers)}" if self.in_memory else "stock"
        programs = {name: self._program(self.machine_of(name)) for name in self.names}
        for program in set(programs.values()):
            program.name(self._rung, lock)
        return {name: self._relay(name, lock, program) for name, program in programs.items()}

    @property
    def _rung(self) -> str:
        return f"{self.entry.code.__module__}:{self.entry.code.__qualname__}"

    def machine_of(self, name: str) -> int:
        """Return the number of the machine on which a client runs. Each machine has one program."""
        return 1

    def _program(self, machine: int) -> Program:
        return cast("Program", self.sandbox.resource(f"program {machine}", Program))

    def _relay(self, name: str, lock: str, program: Program) -> Job:
        def job() -> str:
            work = Work(
                self._rung,
                lock,
                self.sandbox.redis_url,
                ttl=TTL,
                now=self.sandbox.clock.now,
                in_memory=self.in_memory,
            )
            worker, pipe = program.fork(work)
            try:
                return self._relay_steps(name, pipe)
            finally:
                program.end(worker)
                pipe.close()

        return job

    def _relay_steps(self, name: str, pipe: Connection[Any, Any]) -> str:
        actor = cast("Actor", current_actor())
        while True:
            report, *arguments = pipe.recv()
            if report == "done":
                return str(arguments[0])
            if report == "enters":
                self.history.enter(name)
            elif report == "leaves":
                self.history.leave(name)
            else:
                (actor.stop if report == "stops" else actor.sleep)(*arguments)
                pipe.send(self.sandbox.clock.now)


class MemoryWorkload(ProcessWorkload):
    """Clients that are processes, with a lock in the memory of the processes."""

    in_memory = True


class MachinesWorkload(MemoryWorkload):
    """Clients A and B are workers of one program. Other clients run in a second program, as if on another machine."""

    interchangeable = False

    def machine_of(self, name: str) -> int:
        return 1 if name in self.names[:2] else 2
