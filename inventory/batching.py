"""Coalesce concurrent calls: one thread of the process runs the batch for every caller that is waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from django.db import connection

Request = TypeVar("Request")
Result = TypeVar("Result")
LINGER = 0.002
"""Seconds that a batch waits for more calls if the batch before it had several. Otherwise it starts at once."""


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False, slots=True)
class Pending(Generic[Request, Result]):
    """A pending call. Its thread is woken once: either with its result or to run the next batch.

    It waits for a lock, which is released to wake it. An Event makes a lock for each wait and does more around it:
    waking sixteen threads by events took a tenth of the time of their orders.
    """

    request: Request
    done: bool = False
    result: Result | None = None
    error: BaseException | None = None
    woken: bool = False
    _waiting: threading.Lock = field(default_factory=_held)

    def wait_to_be_woken(self) -> None:
        """Sleep until `wake_up` is called. The lab recognises this function: no server knows of the wait."""
        self._waiting.acquire()

    def wake_up(self) -> None:
        self.woken = True
        self._waiting.release()


class Batcher(Generic[Request, Result]):
    """Runs one batch at a time; calls that arrive during a batch form the next one.

    A call that finds no batch running, and comes after a batch of one, starts at once and does not wait for others.
    Under load a batch waits `LINGER` seconds before it starts: Postgres answers faster than one process sends requests,
    so batches would stay small, and each costs a round trip. A batch starts after the last of its calls arrived, so a
    result is never older than its call. The batcher has no thread of its own.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._pending: list[Pending[Request, Result]] = []
        self._running = False
        self._last = 0

    def submit(self, request: Request, run: Callable[[Sequence[Request]], Sequence[Result]]) -> Result:
        """Run a request together with all requests that are pending, and return its result.

        Args:
            run: computes the results of many requests, in their order. All callers must pass equivalent functions,
                since the function of any one of them serves the whole batch. Its exception is raised in every caller.
        """
        mine: Pending[Request, Result] = Pending(request)
        if not self._enter(mine, only_as_leader=True):
            # Return the connection to the pool first: the leader may need it. This comes before the call is visible to
            # the leader, because a thread that may be woken to lead must not block on a connection.
            if not connection.in_atomic_block:
                connection.close()
            if not self._enter(mine):
                mine.wait_to_be_woken()
        if not mine.done:
            self._lead(mine, run)
        if mine.error is not None:
            raise mine.error
        return cast(Result, mine.result)

    def pending(self) -> int:
        """The number of calls that wait for the next batch."""
        return len(self._pending)

    def _enter(self, mine: Pending[Request, Result], *, only_as_leader: bool = False) -> bool:
        """Add a call to the next batch, and return whether its thread must run that batch now.

        Args:
            only_as_leader: do not add the call if another thread leads.
        """
        with self._mutex:
            leads = not self._running
            if leads or not only_as_leader:
                self._pending.append(mine)
                self._running = True
        return leads

    def _gather(self) -> list[Pending[Request, Result]]:
        """Begin a batch of all pending calls."""
        with self._mutex:
            batch, self._pending = self._pending, []
        self._last = len(batch)
        return batch

    def _lead(self, mine: Pending[Request, Result], run: Callable[[Sequence[Request]], Sequence[Result]]) -> None:
        """Run the batch of all pending calls, then wake the first call of the next batch to lead it."""
        batch: list[Pending[Request, Result]] = []
        try:
            if self._last > 1:
                time.sleep(LINGER)
            batch = self._gather()
            results = run([call.request for call in batch])
            for call, result in zip(batch, results, strict=True):
                call.result = result
        except BaseException as error:
            batch = batch or self._gather()
            for call in batch:
                call.error = error
        finally:
            for call in batch:
                call.done = True
            with self._mutex:
                self._running = bool(self._pending)
                leader = self._pending[0] if self._pending else None
            if leader is not None:
                leader.wake_up()
            for call in batch:
                if call is not mine:
                    call.wake_up()
