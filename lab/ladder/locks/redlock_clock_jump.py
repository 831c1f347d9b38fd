"""Flawed lock: the system time of one node jumps ahead, and its grants expire at once."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import Redlock


class RedlockClockJump(FaultRung):
    """Flawed: the nodes measure a TTL by the system time, which an operator or a time service may change.

    The drift allowance covers clocks that run a little fast or slow, not clocks that jump. The schedule that breaks it:
    two of five nodes cannot be reached, and the other three grant client A the lock. On one of the three, the clock is
    set forward by more than the TTL, and A's grant there expires. The two nodes come back. Now three nodes grant B the
    lock.

    No setting of the nodes repairs this, and Redlock has no fence: its nodes share no counter. Jumps are rarer if
    clocks are slewed and never stepped.

    Fixed at the store, by the fence of a lock that has one (ZooKeeper, etcd, one Redis): `fence`. The clock of that one
    Redis may jump too, and then two clients hold its lock; but the second has the greater fence. The guard in SQL also
    protects the stock. Source: article 002, section 4.2.4.
    """

    slug = "redlock-clock-jump"
    title = "Redlock, a clock jumps"
    flaw = "One node whose clock jumps beyond the TTL makes a second majority, and two clients hold the lock."
    breaks = "one holder"
    broken_by = "clock jump"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "fence"
    source = "002"
    lock = Redlock
