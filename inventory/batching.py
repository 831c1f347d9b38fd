"""Coalesce concurrent calls: one thread of the process runs the batch for every caller that is waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from django.db import connection

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class Pending(Generic[Request, Result]):
    """A pending call. Its thread is woken once: either with its result or to run the next batch."""

    request: Request
    woken: threading.Event = field(default_factory=threading.Event)
    done: bool = False
    result: Result | None = None
    error: BaseException | None = None


class Batcher(Generic[Request, Result]):
    """Runs one batch at a time; calls that arrive during a batch form the next one.

    A call that finds no batch running starts at once and does not wait for others. A batch starts after the last of its
    calls arrived, so a result is never older than its call. The batcher has no thread of its own.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._pending: list[Pending[Request, Result]] = []
        self._running = False

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
                mine.woken.wait()
        if not mine.done:
            self._lead(run)
        if mine.error is not None:
            raise mine.error
        return cast(Result, mine.result)

    def pending(self) -> int:
        """The number of calls that wait for the next batch."""
        return len(self._pending)

    def _enter(self, mine: Pending[Request, Result], *, only_as_leader: bool = False) -> bool:
        """Add a call to the next batch, and return whether its thread is to run that batch now."""
        with self._mutex:
            leads = not self._running
            if leads or not only_as_leader:
                self._pending.append(mine)
                self._running = True
        return leads

    def _lead(self, run: Callable[[Sequence[Request]], Sequence[Result]]) -> None:
        """Run the batch of all pending calls, then wake the first call of the next batch to lead it."""
        with self._mutex:
            batch, self._pending = self._pending, []
        try:
            results = run([call.request for call in batch])
            for call, result in zip(batch, results, strict=True):
                call.result = result
        except BaseException as error:
            for call in batch:
                call.error = error
        finally:
            for call in batch:
                call.done = True
            with self._mutex:
                self._running = bool(self._pending)
                leader = self._pending[0] if self._pending else None
            if leader is not None:
                leader.woken.set()
            for call in batch:
                call.woken.set()
