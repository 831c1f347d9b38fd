"""`redlock-no-fsync`: a node that restarts has forgotten its grants and grants the lock again."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import Redlock


class RedlockNoFsync(FaultRung):
    """Flawed: two majorities share a node, which does not help when that node forgets.

    The lock is the sound `Redlock`. The flaw is how its nodes store their grants. The schedule that breaks
    it: two of five nodes cannot be reached, and the other three grant A the lock. One of the three loses power and
    restarts without the grant, and the two nodes come back. B asks. These three nodes know no lock, and three are a
    majority.

    A grant by all five nodes survives the restart of two such nodes; a grant by three survives none. The holder does
    not know how many nodes granted it the lock.

    Fixed by nodes that sync each write to disk (`appendfsync always`, which costs a disk wait per grant), or that stay
    out for the longest TTL in use before they come back: `redlock`. Source: article 002, section 4.2.2.
    """

    slug = "redlock-no-fsync"
    title = "Redlock, no fsync"
    flaw = "One node that restarts empty makes a second majority, and two clients hold the lock."
    breaks = "one holder"
    broken_by = "restart"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "redlock"
    source = "002"
    lock = Redlock
