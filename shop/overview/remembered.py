"""A cache for figures of the overview, so that ten operators cost as much as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import connection

Value = TypeVar("Value")

LEAST = 1.0
"""Minimum number of seconds for which a value is cached."""
SHARE = 3
"""A value is cached at least `SHARE` times as long as it took to read, so reading uses at most a quarter of a core."""


class Remembered(Generic[Value]):
    """A cached value. When it is too old, one caller at a time reads it again.

    Args:
        read: reads the present value.
    """

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._mutex = threading.Lock()
        self._value: Value | None = None
        self._until = 0.0

    def __call__(self) -> Value:
        """Return the value, which is at most a second old, or older if it takes long to read.

        While one caller reads, the others get the previous value. If there is no previous value, they wait. Before that
        they return their connection to the pool, because the caller that reads may need it.
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
        """Drop the cached value, so that the next call reads it again."""
        with self._mutex:
            self._value = None
