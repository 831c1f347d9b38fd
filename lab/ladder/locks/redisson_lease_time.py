"""Flawed lock: Redisson's lock with a lease time, which turns the watchdog off."""

from __future__ import annotations

from dataclasses import replace

from lab.ladder.locks.redisson_watchdog import RedissonWatchdog
from lab.ladder.locks.rung import LockRung
from locking.lease import Lease


class RedissonLeaseTime(RedissonWatchdog):
    """Flawed: the lease time looks like a safeguard against dead holders, but it also ends the lock of living ones.

    `lock()` starts the watchdog. `lock(30, SECONDS)` does not, because the caller has said when the lock ends. The
    schedule that breaks it: client A acquires the lock with a lease time, and its work takes longer. B asks again when
    the lease time is over, and acquires the lock. Both are in the critical section.

    Fixed by calling `lock()` without a lease time: `redisson-watchdog`. Source: article 002. Its example (section
    3.6.4) gives a lease time. Its explanation (section 4.1.2) is about the watchdog, which this example does not start.
    """

    slug = "redisson-lease-time"
    title = "Redisson with a lease time"
    flaw = "A lease time turns the watchdog off, and the lock ends while its holder works."
    breaks = "one holder"
    broken_by = "expiry"
    survives = frozenset({"late release", "crash"})
    fixed_by = "redisson-watchdog"
    source = "002"
    capabilities = replace(RedissonWatchdog.capabilities, renews=False)

    def _grant(self, owner: str, started: float) -> Lease:
        return LockRung._grant(self, owner, started)  # Do not call `RenewedRung._grant`: it starts the watchdog.
