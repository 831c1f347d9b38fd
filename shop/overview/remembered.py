"""Figures that all operators of a process share, so that ten of them cost as much as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import connection

Value = TypeVar("Value")

LEAST = 1.0
"""Seconds for which a value is used at least."""
SHARE = 3
"""A value is used for `SHARE` times as long as it took to read, so that reading takes at most a quarter of a core."""


class Remembered(Generic[Value]):
    """A value that one caller at a time reads, and the others use.

    Args:
        read: returns the value now.
    """

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._mutex = threading.Lock()
        self._value: Value | None = None
        self._until = 0.0

    def __call__(self) -> Value:
        """Return the value, at most a second old, or older if it takes long to read.

        While one caller reads, the others get the older value. If there is none yet, they wait for it. They give back
        their connection to Postgres first, because the caller that reads may need it.
        """
        if not self._mutex.acquire(blocking=False):
            if (older := self._value) is not None:
                return older
            connection.close()
            self._mutex.acquire()
        try:
            begun = time.monotonic()
            if self._value is not None and begun < self._until:
                return self._value
            try:
                self._value = self._read()
            finally:
                ended = time.monotonic()
                self._until = ended + max(LEAST, SHARE * (ended - begun))
            return self._value
        finally:
            self._mutex.release()

    def forget(self) -> None:
        """Read the value again when it is asked for next."""
        with self._mutex:
            self._value = None
