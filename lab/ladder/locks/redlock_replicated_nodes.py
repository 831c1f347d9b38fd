"""`redlock-replicated-nodes`: each node of the quorum has a replica, which takes over without what it has not heard."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import Redlock


class RedlockReplicatedNodes(FaultRung):
    """Flawed: a replica makes the node available again, and a node that is gone is the safer one.

    Redlock needs nodes to be there, but first of all it needs them to remember. The schedule: of five nodes two cannot
    be reached, and A is granted the lock by the other three; one of the three is lost before its replica has the grant,
    and the replica takes its place; the two are back. B asks, these three have no lock, and they are a majority.
    Without the replica there would be two votes for B, and A would hold what he was granted.
    Fixed by nodes that are independent of each other and of everybody else, no replica behind any of them: `redlock`.
    Source: article 002, section 4.2.3.
    """

    slug = "redlock-replicated-nodes"
    title = "Redlock, replicated nodes"
    flaw = "One node that fails over to a replica which is behind makes a second majority, and two hold the lock."
    breaks = "one holder"
    broken_by = "failover"
    survives = frozenset({"expiry", "crash"})
    fixed_by = "redlock"
    source = "002"
    lock = Redlock
    event = "failover"
