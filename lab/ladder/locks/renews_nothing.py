"""`renews-nothing`: a watchdog that takes the lock again, which is refused since it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung
from locking.lease import Lease
from locking.redis.connection import NO_ANSWER
from locking.renewal import watchdog


class RenewsNothing(LockRung):
    """Flawed: to extend is not to take again, and the answer is not read.

    The watchdog runs, sees that the lock is its holder's, and says that it has renewed it. The schedule: A takes the
    lock and works; the watchdog's SET NX is refused, each time, because the key is there; the TTL passes as if there
    were none, and B takes the lock. Both are inside, and A's own lease says that all is well.
    Fixed by a script that compares and extends: `renewal`. Source: article 000, whose published listing does this.
    """

    slug = "renews-nothing"
    title = "Renewal that renews nothing"
    flaw = "The lock expires on time, under its holder, who believes that it was renewed."
    breaks = "one holder"
    broken_by = "expiry"
    survives = frozenset({"late release", "crash"})
    fixed_by = "renewal"
    source = "000"
    capabilities = replace(WITH_A_TTL, renews=True)

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        return [self._renew(lease.token) for lease in leases]

    def _renew(self, owner: str) -> bool | None:
        try:
            if self.client.get(self.key) != owner.encode():
                return False
            self.take(owner)
            return True
        except NO_ANSWER:
            return None

    def close(self) -> None:
        """It keeps no connection."""

    def _grant(self, owner: str, started: float) -> Lease:
        lease = super()._grant(owner, started)
        watchdog.watch(lease, self)
        return lease

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return super()._release(lease)
