"""Faults of leases: the TTL passes, a watchdog renews a lease, or a client is paused."""

from __future__ import annotations

from collections.abc import Mapping

from lab.explorer.history import History
from lab.explorer.terms import Fault
from lab.sandbox.clock import RENEWAL_INTERVAL, TTL
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.watchdogs import SteppedWatchdog

LEAP = 1.01 * TTL
"""Seconds by which a server's clock is set forward. This is more than the TTL."""


class LeaseFaults:
    """Faults that can hit any lock with a TTL.

    Args:
        sandbox: the sandbox in which the clients run.
        history: the history of the run.

    Attributes:
        watchdogs: the watchdogs of the current run, by the names of their actors.
    """

    ticks = 3
    """After this many renewal intervals without a renewal, a grant has ended on the server."""

    def __init__(self, sandbox: Sandbox, history: History) -> None:
        self.sandbox = sandbox
        self.history = history
        self.watchdogs: Mapping[str, SteppedWatchdog] = {}

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now.

        Args:
            actor: the actor that the fault hits, for `FAULTS_OF_AN_ACTOR`.
        """
        inside = self.history.inside
        if fault == "tick":
            return self.watchdogs[actor].renews
        if fault == "late release":
            return not inside and self._can_expire()
        if fault == "expiry":
            return bool(inside or not self.history.holders_known) and self._can_expire()
        if fault == "pause":
            return (actor in inside or self.watchdogs[actor].renews) and self._can_expire()
        return False

    def _can_expire(self) -> bool:
        return self.sandbox.until_expiry() is not None

    def inject(self, fault: Fault, actor: str = "") -> None:
        """Make a fault happen. `offers` must have allowed the fault."""
        if fault == "tick":
            self.wait_for_renewal()
            self.watchdogs[actor].tick()
            return
        self.history.faults += 1
        for _ in range(self.ticks):
            for name, watchdog in self.watchdogs.items():
                if name != actor:
                    watchdog.tick()
            self.sandbox.pass_time(RENEWAL_INTERVAL)

    def wait_for_renewal(self) -> None:
        """Let time pass until the watchdogs have to renew their leases."""
        self.history.faults += 1
        self.sandbox.pass_time(RENEWAL_INTERVAL)


class ClockJumpFaults(LeaseFaults):
    """Faults of leases, and one more: the clock of the lock server is set forward. Then all its TTLs end together."""

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now. See `LeaseFaults.offers`."""
        return super().offers("expiry" if fault == "clock jump" else fault, actor)

    def inject(self, fault: Fault, actor: str = "") -> None:
        """Make a fault happen. See `LeaseFaults.inject`."""
        if fault == "clock jump":
            self.history.faults += 1
            self.sandbox.pass_time(LEAP)
            self.sandbox.clock.now -= LEAP  # the clients' own clocks must not jump
        else:
            super().inject(fault, actor)


class LockServerFaults(LeaseFaults):
    """Faults of locks on ZooKeeper and etcd. Their leases are not stored in Redis."""

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now. See `LeaseFaults.offers`."""
        if fault == "late release":
            return not self.history.inside
        return bool(self.history.inside) if fault == "expiry" else super().offers(fault, actor)


class EtcdFaults(LockServerFaults):
    """Faults of locks on etcd, where a lease lasts a quarter longer than the lock's TTL."""

    ticks = 4
