"""The clock of a schedule, and how long a lease lasts on it."""

from __future__ import annotations

TTL = 30.0
"""Seconds on the schedule's clock, so long that the real time which passes during a run does not matter."""
RENEWAL_INTERVAL = 0.35 * TTL
"""Seconds after which a watchdog has something to renew."""


class Clock:
    """Monotonic seconds that pass only when the schedule says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
