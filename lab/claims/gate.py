"""A gate for stress runs: it lets time pass only while no client is in the middle of a step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_TIMEOUT = 0.2
"""Seconds within which the other clients must reach their next step or a wait."""


class Gate:
    """Stops the clients of a stress run while something happens to all of them, such as a jump of the clock.

    The servers answer within microseconds. Without the gate, the clock could jump by half a minute between an answer
    and its use by the client. That would be a pause, which is a different fault.

    A client is quiet while it takes no step: it pauses before a step, waits for a server, or is done.

    Args:
        threads: number of clients.
    """

    def __init__(self, threads: int) -> None:
        self._busy = threads
        self._closed = False
        self._condition = threading.Condition()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside the `with` block, count the calling client as quiet.

        The block ends only when the gate is open.
        """
        self.leave()
        try:
            yield
        finally:
            with self._condition:
                self._condition.wait_for(lambda: not self._closed)
                self._busy += 1

    def leave(self) -> None:
        """Count the calling client as quiet until its next step. Also called when the client is done."""
        with self._condition:
            self._busy -= 1
            self._condition.notify_all()

    @contextmanager
    def closed(self, *, wait: bool) -> Iterator[bool]:
        """Inside the `with` block, let no client take a step. Called by a quiet client or by the main thread.

        Args:
            wait: whether to close the gate and wait until the other clients are quiet. If False, the gate stays open.

        Yields:
            Whether the other clients are quiet. False if they are not quiet after `QUIET_TIMEOUT` seconds. Also False,
            without waiting, if another thread has closed the gate, because that thread may wait for this thread. True
            without a check if `wait` is False.
        """
        if not wait:
            yield True
            return
        with self._condition:
            closes, self._closed = not self._closed, True
            quiet = closes and self._condition.wait_for(lambda: self._busy == 0, QUIET_TIMEOUT)
        try:
            yield quiet
        finally:
            if closes:
                with self._condition:
                    self._closed = False
                    self._condition.notify_all()
