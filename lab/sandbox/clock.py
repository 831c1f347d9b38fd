"""The clock of a schedule, and the TTL of a lease on it."""

from __future__ import annotations

TTL = 30.0
"""TTL of a lease, in seconds on the schedule's clock. It is so long that the real duration of a run does not matter."""
RENEWAL_INTERVAL = 0.35 * TTL
"""Seconds on the schedule's clock after which a watchdog has to renew a lease."""


class VirtualClock:
    """Monotonic seconds that pass only when the schedule says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
