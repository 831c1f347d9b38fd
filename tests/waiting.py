"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 30.0
"""Seconds after which a condition that does not come fails a test. It says nothing about how long it should take."""

Seen = TypeVar("Seen")


def wait_for(condition: Callable[[], Seen], what: str = "", *, timeout: float = PATIENCE) -> Seen:
    """Return the first true value of `condition`, and fail when there is none."""
    deadline = time.monotonic() + timeout
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        time.sleep(0.005)
    return seen
