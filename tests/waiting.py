"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def wait_for(condition: Callable[[], Seen], *, timeout: float = 10.0) -> Seen:
    """What the condition gives once it is true.

    Args:
        timeout: seconds after which the test fails.
    """
    deadline = time.monotonic() + timeout
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"Not within {timeout} s: {getattr(condition, '__name__', condition)}"
        time.sleep(0.02)
    return seen
