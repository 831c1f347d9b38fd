"""Once: creates one object per process, at its first use.

gevent may patch `threading` after the application has imported this package. A `threading.Lock` created during the
import would stay unpatched, and would not work between greenlets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """A callable that creates an object at its first call, and returns the same object at every later call.

    Args:
        make: function that creates the object. It must look `threading` up inside its body, to get the patched module.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []

    def __call__(self) -> T:
        if not self._made:
            self._made.append(self._make())  # if two threads create an object, both use the first
        return self._made[0]
