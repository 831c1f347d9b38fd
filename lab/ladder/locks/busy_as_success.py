"""`busy-as-success`: who does not get the lock skips the work, and is told that it was done."""

from __future__ import annotations

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class BusyAsSuccess(LockRung):
    """Flawed: there are two ways out of the block, and one answer for both.

    The lock is the one of the next rung; what is wrong is who uses it. The schedule: A holds the lock and sells, B is
    refused and answers yes. Two buyers were told yes and one unit is gone. Under load most of them are B.
    Fixed by `setnx`, where a caller waits, and one who was not let in gets an error. Source: article 000.
    """

    slug = "busy-as-success"
    title = "Busy is answered as success"
    flaw = "A buyer who was not let in is told that he has bought."
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
