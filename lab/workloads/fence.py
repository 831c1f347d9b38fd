"""Clients whose store looks at the fence of each, while the clock of the lock's server may leap."""

from __future__ import annotations

from lab.explorer.terms import Fault
from lab.workloads.base import TTL
from lab.workloads.lock import FenceTrial

LEAP = 1.01 * TTL
"""Seconds that the server's clock is set ahead by."""


class LeapTrial(FenceTrial):
    """All that expires on the server does at once, and nobody else's clock says so."""

    def offers(self, event: Fault, who: str = "") -> bool:
        """See `Trial.offers`."""
        return super().offers("expiry" if event == "clock jump" else event, who)

    def happens(self, event: Fault, who: str = "") -> None:
        """See `Trial.happens`."""
        if event == "clock jump":
            self.events += 1
            self.stage.pass_time(LEAP)
            self.stage.clock.now -= LEAP
        else:
            super().happens(event, who)
