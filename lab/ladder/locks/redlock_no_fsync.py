"""`redlock-no-fsync`: a node that restarts has forgotten what it granted, and grants it again."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import Redlock


class RedlockNoFsync(FaultRung):
    """Flawed: two majorities have a node in common, which is worth nothing when that node has no memory.

    The lock is `Redlock` as you may ship it; the flaw is in how its nodes keep what they grant. The schedule: of five
    nodes two cannot be reached, and A is granted the lock by the other three; one of the three loses power and starts
    again without the grant, and the two are back. B asks, these three have no lock, and they are a majority.

    A grant by all five spares two such nodes, a grant by three spares none, and nobody tells its holder which he has.
    Fixed by nodes that sync each write to disk (`appendfsync always`, which costs a wait for the disk a grant), or
    that stay out for the longest TTL in use before they come back: `redlock`. Source: article 002, section 4.2.2.
    """

    slug = "redlock-no-fsync"
    title = "Redlock, no fsync"
    flaw = "One node that restarts empty makes a second majority, and two hold the lock."
    breaks = "one holder"
    broken_by = "restart"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "redlock"
    source = "002"
    lock = Redlock
    event = "restart"
