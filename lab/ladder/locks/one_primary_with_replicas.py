"""`one-primary-with-replicas`: the lock is on the primary, and its replicas hear of a grant after its holder does."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import RedisLock


class OnePrimaryWithReplicas(FaultRung):
    """Flawed: whoever takes over from the primary knows only what had come to him by then.

    The lock is `RedisLock` as you may ship it; the flaw is that of one server that others copy, later. The schedule: A
    is granted the lock; the primary is lost before it has sent that on; a replica is promoted and has never heard of
    A; B asks it and is granted the lock. Both leases say that all is well, until A's renewal is refused, up to a third
    of the TTL later: time enough to sell.

    `wait_for_replicas=1` holds in this schedule: a grant that no replica has is no grant, and A gets an error. It
    narrows the gap and does not close it: with two replicas, A's grant on one of them and the other one promoted, two
    hold it again. A fence holds in both: B's is greater, so a store that has seen it refuses A. It is the clock of the
    server, so that takes a replica whose clock is not behind by more than lies between the two grants. The guard in SQL
    (`… SET n = n - 1 WHERE n > 0`) needs no clock: it keeps the stock from going below zero whoever holds what, and
    does not say who may write.
    Fixed by a majority of servers that know nothing of each other, of which one may be lost: `redlock`; and where you
    write, by the `fence`. Source: articles 000, 001 and 002 (section 4.2).
    """

    slug = "one-primary-with-replicas"
    title = "One primary with replicas"
    flaw = "A failover forgets a grant that was not copied yet, and two hold the lock."
    breaks = "one holder"
    broken_by = "failover"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "redlock"
    source = "000, 001, 002"
    lock = RedisLock
    event = "failover"
