"""Clients who are processes of their own: workers that a program has forked. A thread here relays what each says."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, cast

from lab.explorer.actor import ROOT, Actor, current_actor
from lab.workloads.base import TTL
from lab.workloads.counter import STOCK, UNITS
from lab.workloads.lock import LockTrial
from lab.workloads.program import Order, Work

_numbers = count(1)


class Program:
    """A running `lab.workloads.program`. It ends when we close it, or die."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lab.workloads.program", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control: Connection[Any, Any] = Connection(ours.detach())
        self._mutex = threading.Lock()

    def name(self, slug: str, lock: str) -> None:
        """Let it name a lock before it forks anybody who uses it."""
        self._order("name", (slug, lock))

    def fork(self, work: Work) -> tuple[int, Connection[Any, Any]]:
        """Let it fork a worker. Returns the number of the process, and the pipe on which he says his steps."""
        ours, theirs = socket.socketpair()
        with theirs, self._mutex:
            self._order("fork", work)
            send_handle(self._control, theirs.fileno(), self._process.pid)
            return self._control.recv(), Connection(ours.detach())

    def end(self, worker: int) -> None:
        """Kill a worker, if he has not ended by himself, and return when he is gone."""
        with self._mutex:
            self._order("end", worker)
            self._control.recv()

    def close(self) -> None:
        """Let it end, and return when it has."""
        self._control.close()
        self._process.wait()

    def _order(self, order: Order, what: Any) -> None:
        self._control.send((order, what))


class ProcessTrial(LockTrial):
    """Each client is a process that one program has forked: the workers of a web server."""

    in_memory = False
    """Whether the lock is in the memory of the processes."""

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        self.stage.redis.set(STOCK, UNITS)
        # A worker that was killed has kept what he had of an earlier one.
        lock = f"stock {next(_numbers)}" if self.in_memory else "stock"
        programs = {name: self._program(self.machine_of(name)) for name in self.names}
        for program in set(programs.values()):
            program.name(self.entry.slug, lock)
        return {name: self._relay(name, lock, program) for name, program in programs.items()}

    def machine_of(self, name: str) -> int:
        """On which machine a client runs, and so in which program."""
        return 1

    def _program(self, machine: int) -> Program:
        return cast("Program", self.stage.kept(f"program {machine}", Program))

    def _relay(self, name: str, lock: str, program: Program) -> Callable[[], str]:
        def job() -> str:
            work = Work(
                self.entry.slug, lock, self.stage.redis_url, ttl=TTL, now=self.stage.clock.now, in_memory=self.in_memory
            )
            worker, pipe = program.fork(work)
            try:
                return self._hears(name, pipe)
            finally:
                program.end(worker)
                pipe.close()

        return job

    def _hears(self, name: str, pipe: Connection[Any, Any]) -> str:
        actor = cast("Actor", current_actor())
        while True:
            said, *what = pipe.recv()
            if said == "done":
                return str(what[0])
            if said == "enters":
                self.enters(name)
            elif said == "leaves":
                self.leaves(name)
            else:
                (actor.stop if said == "stops" else actor.sleep)(*what)
                pipe.send(self.stage.clock.now)


class MemoryTrial(ProcessTrial):
    """The same, and the lock is in the memory of the processes."""

    in_memory = True


class MachinesTrial(MemoryTrial):
    """A and B are workers of one program; whoever comes after them runs on another machine: in another program."""

    alike = False

    def machine_of(self, name: str) -> int:
        return 1 if name in self.names[:2] else 2
