"""Functions that tests run in other processes. The last argument is a pipe to the test."""

from __future__ import annotations

from contextlib import nullcontext
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psycopg

from locking import Lease, LeaseLost, Lock
from tests.locking.support import Recipe, acquired
from tests.waiting import wait_for


def add(lock: Lock, cell: Any, times: int, locked: bool) -> None:
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


def add_in_greenlets(recipe: Recipe, name: str, options: dict[str, Any], _: Pipe) -> None:
    """Let gevent patch this process, which has imported `locking`. Then let each of twenty greenlets add one."""
    from gevent import monkey

    monkey.patch_all()

    import gevent

    cell = recipe.cell(name)
    tokens = []

    def add_one() -> None:
        with recipe(name, **options).hold() as lease:
            tokens.append(lease.token)
            value = cell.read()
            gevent.sleep(0)
            cell.write(value + 1)

    gevent.joinall([gevent.spawn(add_one) for _ in range(20)], raise_error=True)
    assert len(set(tokens)) == 20, "two greenlets held the same lease"


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
