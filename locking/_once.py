"""Once: an object of the whole process that is made when it is first needed.

An application may let gevent patch `threading` after it has imported this package. A lock that was made by the import
would still be one for threads of the operating system, and would fail between greenlets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Makes an object at its first call, and returns the same object at every later one.

    Args:
        make: makes the object. It looks `threading` up when it is called, not before.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []

    def __call__(self) -> T:
        if not self._made:
            self._made.append(self._make())  # of several threads, the first to append decides for all
        return self._made[0]
