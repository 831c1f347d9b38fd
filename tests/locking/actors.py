"""What other processes do in the tests of locks. Each gets a pipe to the test as its last argument."""

from __future__ import annotations

import os
import pickle
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psycopg

from locking import LeaseLost
from locking.redis import waiting
from tests.locking.support import Recipe
from tests.waiting import wait_for


def pickled(value: Any) -> bytes:
    """What another process reads from its standard input."""
    return pickle.dumps(value)


def increment(recipe: Recipe, name: str, options: dict[str, Any], times: int, locked: bool, pipe: Pipe) -> None:
    """Read, add one and write back, `times` times, when told to start."""
    lock, cell = recipe(name, **options), recipe.cell(name)
    pipe.send("ready")
    pipe.recv()
    for _ in range(times):
        if locked:
            with lock.hold():
                cell.write(cell.read() + 1)
        else:
            cell.write(cell.read() + 1)
    pipe.send("done")


def hold(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Take the lock, say so, and keep it until told to release it."""
    lease = recipe(name, **options).acquire()
    assert lease is not None
    pipe.send(lease.fence)
    pipe.recv()
    pipe.send(lease.release())


def wait_and_hold(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """As `hold`, but say first that it is about to wait."""
    pipe.send("waiting")
    hold(recipe, name, options, pipe)


def die_when_woken(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Wait for the lock, and die when it is handed over, before anything is done with it."""
    sleep = waiting.Waiter.wait

    def wait(self: waiting.Waiter, seconds: float, left: float) -> str | None:
        if sleep(self, seconds, left) is not None:
            os._exit(9)
        return None

    waiting.Waiter.wait = wait  # type: ignore[method-assign]
    wait_and_hold(recipe, name, options, pipe)


def write_after_a_pause(recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Take the lock, sleep until told that the pause is over, and say what the lease says then."""
    lost: list[int | None] = []
    lease = recipe(name, on_lost=lambda lease: lost.append(lease.fence), **options).acquire()
    assert lease is not None
    pipe.send(lease.fence)
    pipe.recv()
    try:
        lease.check()
        said = "held"
    except LeaseLost:
        said = "lost"
    if said == "lost":
        wait_for(lambda: lost)
    pipe.send((said, len(lost), lease.release()))


def write_with_its_fence(
    recipe: Recipe, name: str, options: dict[str, Any], conninfo: str, statement: str, pipe: Pipe
) -> None:
    """As `write_after_a_pause`, and write to Postgres whatever the lease says: a unit of the sku `a`."""
    lost: list[int | None] = []
    lease = recipe(name, on_lost=lambda lease: lost.append(lease.fence), **options).acquire()
    assert lease is not None
    pipe.send(lease.fence)
    pipe.recv()
    try:
        lease.check()
        said = "held"
    except LeaseLost:
        said = "lost"
    wait_for(lambda: lost)
    with psycopg.connect(conninfo, autocommit=True) as own:
        written = own.execute(
            statement, {"sku": "a", "quantity": 1, "fence": lease.fence, "kind": "redis-lock"}
        ).rowcount
    pipe.send((said, len(lost), written))
