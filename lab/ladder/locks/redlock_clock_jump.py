"""`redlock-clock-jump`: the time of day leaps on one node, where every grant is over at once."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import Redlock


class RedlockClockJump(FaultRung):
    """Flawed: the nodes count a TTL by the time of day, which an operator or a time service may set.

    The drift allowance is for clocks that run a little faster or slower, not for those that leap. The schedule: of five
    nodes two cannot be reached, and A is granted the lock by the other three; on one of the three the clock is set
    ahead by more than the TTL, and the two are back. A's grant has expired there, and three nodes grant the lock to B.

    Nothing about the nodes mends that, and Redlock has no fence of its own: its nodes have no common count. Clocks that
    are slewed and never stepped make it rarer.
    Fixed where you write, by the number of a lock that has one (ZooKeeper, etcd, one Redis): `fence`. The clock of that
    one Redis may leap too, and then two hold its lock; the fence of the second is greater for it. The guard in SQL
    holds as well. Source: article 002, section 4.2.4.
    """

    slug = "redlock-clock-jump"
    title = "Redlock, a clock jumps"
    flaw = "One node whose clock leaps beyond the TTL makes a second majority, and two hold the lock."
    breaks = "one holder"
    broken_by = "clock jump"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "fence"
    source = "002"
    lock = Redlock
    event = "clock jump"
