"""Flawed lock: a node that restarts has forgotten its grants, and grants the lock again."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import Redlock


class RedlockNoFsync(FaultRung):
    """Flawed: any two majorities have a node in common, but that does not help if this node forgets its grant.

    The lock is the sound `Redlock`. The flaw is how its nodes store their grants. The schedule that breaks it: two of
    five nodes cannot be reached, and the other three grant client A the lock. One of the three loses power and restarts
    without the grant. The two nodes come back, and B asks for the lock. Three nodes now know of no grant, and three are
    a majority.

    A grant by all five nodes survives the restart of two of them. A grant by three survives none, and the holder does
    not know how many have granted.

    Fixed by nodes that sync each write to disk (`appendfsync always`, which costs a disk wait per grant), or that stay
    away after a restart for the longest TTL in use: `redlock`. Source: article 002, section 4.2.2.
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
