"""A gate that lets time pass in a stress run only while no client is in the middle of a step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_TIMEOUT = 0.2
"""Seconds within which the other clients must reach their next step, or wait."""


class Gate:
    """Stops the clients of a stress run while something happens to all of them.

    The servers answer within microseconds. Without the gate, time could be moved on by half a minute between an answer
    and its use by the client. That would be a pause, which is a different fault.

    Args:
        threads: how many clients there are.
    """

    def __init__(self, threads: int) -> None:
        self._busy = threads
        self._closed = False
        self._condition = threading.Condition()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Count the calling client as quiet inside the `with` block: it takes no step. Leave once the gate opens."""
        self.leave()
        try:
            yield
        finally:
            with self._condition:
                self._condition.wait_for(lambda: not self._closed)
                self._busy += 1

    def leave(self) -> None:
        """Count the calling client as quiet, until it takes a step. Also called when it is done."""
        with self._condition:
            self._busy -= 1
            self._condition.notify_all()

    @contextmanager
    def closed(self, *, wait: bool) -> Iterator[bool]:
        """Let no client take a step inside the `with` block. Called by a client that is quiet, or by the main thread.

        Args:
            wait: whether to close the gate and wait until the other clients are quiet; if False, the gate stays open.

        Yields:
            Whether they are quiet. False when another thread has closed the gate: it may wait for this one.
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
