"""Wait for a condition instead of a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_TIMEOUT = 30.0
"""Seconds after which a missing condition fails the test. It is a safety limit, not an expected duration."""

Seen = TypeVar("Seen")


def wait_for(condition: Callable[[], Seen], what: str = "", *, timeout: float = WAIT_TIMEOUT) -> Seen:
    """Return the first true value of `condition`. Fail if it has none within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = 0.002
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"{what or condition} did not come within {timeout:g} s"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.02)  # Back off, because many conditions query a busy server.
    return seen
