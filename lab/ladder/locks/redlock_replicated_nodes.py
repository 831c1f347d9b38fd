"""Flawed lock: each node has a replica, which takes over without the latest grants."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import Redlock


class RedlockReplicatedNodes(FaultRung):
    """Flawed: the replica makes a lost node available again, but without its grants. A missing node would be safer.

    The schedule that breaks it: two of five nodes cannot be reached, and the other three grant client A the lock. One
    of the three is lost before its replica has received the grant, and the replica takes its place. The two nodes come
    back, and B asks for the lock. Three nodes now know of no grant, and three are a majority. Without the replica, B
    would have two votes and A would keep its lock.

    Fixed by independent nodes without replicas: `redlock`. Source: article 002, section 4.2.3.
    """

    slug = "redlock-replicated-nodes"
    title = "Redlock, replicated nodes"
    flaw = "A node that fails over to a replica without the grant makes a second majority, and two clients hold it."
    breaks = "one holder"
    broken_by = "failover"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "redlock"
    source = "002"
    lock = Redlock
