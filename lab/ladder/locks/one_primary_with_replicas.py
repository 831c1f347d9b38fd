"""Flawed lock: the primary replicates a grant only after the holder has it."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import RedisLock


class OnePrimaryWithReplicas(FaultRung):
    """Flawed: a replica that becomes primary knows only the grants that it had received by then.

    The lock is the sound `RedisLock`. The flaw is asynchronous replication. The schedule that breaks it: the primary
    grants client A the lock and is lost before it replicates the grant. A replica without A's grant is promoted, and it
    grants B the lock. Both leases look valid until A's next renewal is refused, up to a third of the TTL later.

    With `wait_for_replicas=1` this schedule does no harm: a grant that no replica has is an error. That makes the gap
    smaller but does not close it. With two replicas, A's grant may be on one of them while the other is promoted, and
    two clients hold the lock again.

    A fence protects in both cases: B's fence is greater, so a store that has seen it refuses A. The fence is the clock
    of the server. So the replica's clock must not be behind by more than the time between the two grants. The guard in
    SQL (`… SET n = n - 1 WHERE n > 0`) needs no clock. It keeps the stock from going below zero,
    no matter which client holds the lock. But it does not decide which client may write.

    Fixed by a majority of independent servers, of which one may be lost: `redlock`; and at the store by the `fence`.
    Source: articles 000, 001 and 002 (section 4.2).
    """

    slug = "one-primary-with-replicas"
    title = "One primary with replicas"
    flaw = "A failover forgets a grant that was not replicated yet, and two clients hold the lock."
    breaks = "one holder"
    broken_by = "failover"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "redlock"
    source = "000, 001, 002"
    lock = RedisLock
