"""A gate that lets time pass in a stress run only while every client is before a step or waits for one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_TIMEOUT = 0.2
"""Seconds in which the other clients have to reach their next step, or wait."""


class Gate:
    """Stops the clients of a stress run while something happens to all of them.

    The servers answer within microseconds. Without the gate half a minute could pass between an answer and what the
    client does with it: that is a pause, and another fault than the one that is meant.

    Args:
        threads: how many clients there are.
    """

    def __init__(self, threads: int) -> None:
        self._busy = threads
        self._closed = False
        self._condition = threading.Condition()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """For the block, the calling client is before a step or waits. It leaves the block while the gate is open."""
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
        """For the block, let no client take a step. Called by a client that is quiet, or by the main thread.

        Args:
            wait: until the other clients are quiet; otherwise the gate stays open.

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
