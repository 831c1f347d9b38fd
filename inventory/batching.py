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
LINGER, LONGER = 0.002, 0.004
"""Seconds for which a batch waits for more calls: `LONGER` after a batch of 2 to `FEW` calls, `LINGER` after a larger
batch. After a batch of one call, the next batch does not wait."""
FEW = 4


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False, slots=True)
class Pending(Generic[Request, Result]):
    """A call that waits in a `Batcher`. Its thread is woken once: to take its result, or to run the next batch.

    The thread waits by acquiring a held lock, and releasing that lock wakes the thread. `threading.Event` is slower:
    with sixteen threads, waking them by events took a tenth of the time that their orders took.
    """

    request: Request
    done: bool = False
    result: Result | None = None
    error: BaseException | None = None
    woken: bool = False
    since: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    _waiting: threading.Lock = field(default_factory=_held)

    def wait_to_be_woken(self) -> None:
        """Block until `wake_up` is called. The lab's scheduler recognises a waiting thread by this function."""
        self._waiting.acquire()

    def wake_up(self) -> None:
        self.woken = True
        self._waiting.release()


class Batcher(Generic[Request, Result]):
    """Runs one batch of calls at a time. Calls that arrive during a batch form the next batch.

    The thread of one caller runs the batch. A batch starts after all its calls have arrived, so a result is never older
    than its call.

    A batch runs at once if the batch before it had only one call. Otherwise it first waits some milliseconds for more
    calls. Each batch costs a round trip, and Postgres answers faster than one process sends requests. So batches would
    stay small without the wait.

    Args:
        waited: called after each call with two times of `time.monotonic`: when the call was made, and when its batch
            began.
    """

    def __init__(self, waited: Callable[[float, float], None] | None = None) -> None:
        self._waited = waited
        self._mutex = threading.Lock()
        self._pending: list[Pending[Request, Result]] = []
        self._running = False
        self._last = 0

    def submit(self, request: Request, run: Callable[[Sequence[Request]], Sequence[Result]]) -> Result:
        """Run a request together with all requests that are pending, and return its result.

        Args:
            run: returns the results of several requests, in their order. All callers must pass equivalent functions,
                because the function of one caller serves the whole batch. If it raises, every caller of the batch gets
                the exception.
        """
        mine: Pending[Request, Result] = Pending(request)
        if not self._enter(mine, only_as_leader=True):
            # Return the connection to the pool, because the thread that runs the batch may need it. Do this before the
            # call joins a batch: after that, this thread may be woken to run the batch, and the other callers would
            # wait for this thread.
            if not connection.in_atomic_block:
                connection.close()
            if not self._enter(mine):
                mine.wait_to_be_woken()
        if not mine.done:
            self._lead(mine, run)
        if self._waited is not None:
            self._waited(mine.since, mine.begun)
        if mine.error is not None:
            raise mine.error
        return cast(Result, mine.result)

    def pending(self) -> int:
        """Return the number of calls that wait for the next batch."""
        return len(self._pending)

    def _enter(self, mine: Pending[Request, Result], *, only_as_leader: bool = False) -> bool:
        """Add a call to the next batch, and return whether its thread must run that batch now.

        Args:
            only_as_leader: add the call only if its thread must run the batch.
        """
        with self._mutex:
            leads = not self._running
            if leads or not only_as_leader:
                self._pending.append(mine)
                self._running = True
        return leads

    def _gather(self) -> list[Pending[Request, Result]]:
        """Remove all pending calls from the list, and return them as a batch."""
        with self._mutex:
            batch, self._pending = self._pending, []
        begun = time.monotonic()
        for call in batch:
            call.begun = begun
        self._last = len(batch)
        return batch

    def _lead(self, mine: Pending[Request, Result], run: Callable[[Sequence[Request]], Sequence[Result]]) -> None:
        """Run all pending calls as a batch.

        Then wake the first caller that arrived meanwhile, to run the next batch.
        """
        batch: list[Pending[Request, Result]] = []
        try:
            if self._last > 1:
                time.sleep(LINGER if self._last > FEW else LONGER)
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
