"""Functions that tests run in other processes. The last argument is a pipe to the test."""

from __future__ import annotations

import os
import pickle
from contextlib import nullcontext
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psycopg

from locking import Lease, LeaseLost, Lock
from locking.redis import waiting
from tests.locking.support import Cell, Recipe, acquired
from tests.waiting import wait_for


def pickled(value: Any) -> bytes:
    """Pickle an object, for the standard input of another process."""
    return pickle.dumps(value)


def add(lock: Lock, cell: Cell, times: int, locked: bool) -> None:
    """Read, add one and write back, `times` times."""
    for _ in range(times):
        with lock.hold() if locked else nullcontext():
            cell.write(cell.read() + 1)


def increment(recipe: Recipe, name: str, options: dict[str, Any], times: int, locked: bool, pipe: Pipe) -> None:
    """Like `add`, after the start signal."""
    lock, cell = recipe(name, **options), recipe.cell(name)
    pipe.send("ready")
    pipe.recv()
    add(lock, cell, times, locked)
    pipe.send("done")


def hold(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Acquire the lock, send its fence, and hold it until a message arrives. Then release it and send the result."""
    lease = acquired(recipe(name, **options))
    pipe.send(lease.fence)
    pipe.recv()
    pipe.send(lease.release())


def wait_and_hold(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Like `hold`, but also report just before waiting for the lock."""
    pipe.send("waiting")
    hold(recipe, name, options, pipe)


def die_when_woken(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Wait for the lock, and exit the process as soon as it is granted."""
    sleep = waiting.Waiter.wait

    def wait(self: waiting.Waiter, seconds: float, left: float) -> str | None:
        if sleep(self, seconds, left) is not None:
            os._exit(9)
        return None

    waiting.Waiter.wait = wait  # type: ignore[method-assign]
    wait_and_hold(recipe, name, options, pipe)


def pause(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> tuple[Lease, str, list[int | None]]:
    """Acquire the lock and wait for a message. Return the lease, "held" or "lost", and the fences that were lost."""
    lost: list[int | None] = []
    lease = acquired(recipe(name, on_lost=lambda lease: lost.append(lease.fence), **options))
    pipe.send(lease.fence)
    pipe.recv()
    try:
        lease.check()
    except LeaseLost:
        wait_for(lambda: lost)
        return lease, "lost", lost
    return lease, "held", lost


def write_after_a_pause(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Acquire the lock, wait for a message, and report what has become of the lease.

    The report is "held" or "lost", the number of calls of `on_lost`, and the result of a release.
    """
    lease, said, lost = pause(recipe, name, options, pipe)
    pipe.send((said, len(lost), lease.release()))


def write_with_its_fence(
    recipe: Recipe, name: str, options: dict[str, Any], conninfo: str, statement: str, pipe: Pipe
) -> None:
    """Like `write_after_a_pause`, but take a unit of sku `a` in Postgres even if the lease is lost."""
    lease, said, lost = pause(recipe, name, options, pipe)
    with psycopg.connect(conninfo, autocommit=True) as own:
        written = own.execute(statement, {"sku": "a", "units": 1, "fence": lease.fence, "kind": "redis-lock"}).rowcount
    pipe.send((said, len(lost), written))
