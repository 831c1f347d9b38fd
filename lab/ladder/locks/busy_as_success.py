"""Flawed lock: a client that does not get the lock skips the work and reports success."""

from __future__ import annotations

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class BusyAsSuccess(LockRung):
    """Flawed: the function returns the same result whether it has sold a unit or has not got the lock.

    The lock is the one of `setnx`. The mistake is in the code that uses it. The schedule that breaks it: client A holds
    the lock. B is refused and reports success. A sells. Two customers were told that they have bought, but only one
    unit is gone. Under load, most clients are refused like B.

    Fixed by `setnx`, where a client waits, and raises an error if it does not get the lock. Source: article 000.
    """

    slug = "busy-as-success"
    title = "Busy reported as success"
    flaw = "A customer who did not get the lock is told that they have bought."
    breaks = "conserved"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "setnx"
    source = "000"
    capabilities = ON_A_SERVER

    def sell(self, stock: str, timeout: float | None = None) -> bool:
        lease = self.acquire(blocking=False)
        if lease is None:
            return True
        try:
            return self._sell_one(stock)
        finally:
            lease.release()

    def take(self, owner: str) -> bool:
        return bool(self.client.setnx(self.key, "locked"))

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
