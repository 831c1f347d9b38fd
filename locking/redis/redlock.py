"""Redlock: a lock on several independent servers. A client holds it if a majority of the servers has granted it.

`ballot.py` asks the servers, called nodes. `nodes.py` also undoes late grants of nodes that did not answer in time.
Every attempt has a new token: otherwise the late release of one attempt could free the grant of the next.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import redis

from locking._ids import new_token
from locking.arguments import require_count, require_flag, require_seconds
from locking.errors import LockUnavailable
from locking.lease import DRIFT_FACTOR, DRIFT_SECONDS, Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.redis.arguments import require_key_name, require_redis
from locking.redis.ballot import Ballot
from locking.redis.connection import ScriptCall, milliseconds
from locking.redis.nodes import RedlockNode, node_of
from locking.renewal import watchdog

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger(__name__)

PAUSE_PER_ATTEMPT = 10
"""A waiter's average pause is this factor times the duration of its last attempt. The average pause is at least
`retry_delay`, and at most this factor times `retry_delay`."""

ELECTIONS = 10
"""Maximum number of attempts in quick succession. A client repeats its attempt quickly only if the votes were split, so
that no client got the lock."""


class Redlock(Lock):
    """A lock on N independent primaries. N // 2 + 1 of them must grant, extend and release it.

    A grant is valid for `ttl` less the time that asking took, less the drift allowance of
    `ttl * drift_factor + drift_seconds`. Waiters are not woken; they ask again after a pause.

    The lock has no fence (`lease.fence` is None), because N independent servers have no common counter. Only
    `lease.check()` right before a write stops a holder that was paused beyond its lease. If a second holder does
    damage, and the store cannot refuse it in another way, use a lock with a fence.

    It survives the crash of a holder; the loss of any minority of the nodes, whether they are gone, hang or answer with
    errors; and a node that answers after the vote has ended.

    It does not survive:

    - Too many nodes that lose the grant. A grant by k nodes survives the loss of k - quorum of them: of two nodes if
      all five granted it, of none if only three did. A node loses a grant when it restarts before the grant is synced
      to disk (`appendfsync always` syncs every write). It also loses a grant when it fails over to a replica that is
      behind. Keep such a node out of service for the longest TTL in use. An extension does not restore a lost grant.
    - Clocks that are set forward on more than k - quorum nodes: servers expire keys by the time of day. The drift
      allowance covers clocks that run at different speeds, not clocks that jump.
    - A holder that works on without checking its lease.

    A node that cannot be reached during the release keeps its grant until the TTL is over.

    Args:
        clients: one client per node. The nodes must be independent of each other, without replicas and not a cluster;
            use an odd number, typically five. The clients' own timeouts and retries are not used.
        name: name of the lock, such as `stock:sku-42`.
        ttl: lifetime of a grant in seconds, unless it is extended. A lock whose holder has died is free after this
            time.
        drift_factor: how much faster a server's clock may run than the holder's, as a fraction.
        drift_seconds: imprecision of the servers' expiry, in seconds.
        node_timeout: seconds that all nodes together have to answer; far less than `ttl`, far more than a round trip.
        retries: maximum number of further attempts while `timeout` allows them; None for no limit.
        retry_delay: average seconds between two attempts. Each pause is a random 50 to 150 % of it, so that clients
            that split the votes do not meet again. If attempts are slow because many clients ask, pauses are up to ten
            times as long.
        renew: whether the watchdog of the process extends the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.

    Raises:
        TypeError: a client is of another class, such as a client for asyncio, a client of the package valkey, or a
            pipeline; or another argument has the wrong type.
        ValueError: there is no client, or two clients share a pool; the name is empty or cannot be encoded as UTF-8; or
            a time or a count is out of range.

    Sources: S. Sanfilippo, "Distributed Locks with Redis",
    https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/; M. Kleppmann's criticism (no fence, trust
    in clocks), https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html; Sanfilippo's answer,
    http://antirez.com/news/101.
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        expires=True,
        renews=True,
        forks=True,
        survives_holder_crash=True,
        survives_node_loss=True,
        survives_restart=True,
    )

    def __init__(
        self,
        clients: Sequence[Redis],
        name: str,
        *,
        ttl: float = 10.0,
        drift_factor: float = DRIFT_FACTOR,
        drift_seconds: float = DRIFT_SECONDS,
        node_timeout: float = 0.2,
        retries: int | None = None,
        retry_delay: float = 0.1,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=ttl, on_lost=on_lost, clock=clock)
        require_flag("renew", renew)
        name = require_key_name(name)
        if not isinstance(clients, Sequence):
            raise TypeError(f"Redlock needs a sequence of clients, one per server, not {clients!r}")
        for client in clients:
            require_redis(client, redis.Redis)
        times = {"drift_factor": drift_factor, "drift_seconds": drift_seconds}
        for argument, seconds in {**times, "node_timeout": node_timeout, "retry_delay": retry_delay}.items():
            require_seconds(argument, seconds)
        retries = None if retries is None else require_count("retries", retries)
        pools = [client.connection_pool for client in clients]
        if not pools or len(set(pools)) < len(pools):
            raise ValueError("Redlock needs one client per server: a server that is given twice votes twice")
        if not (drift_factor >= 0 and drift_seconds >= 0):
            raise ValueError(f"the drift allowance must not be negative: {drift_factor!r}, {drift_seconds!r}")
        self._drift_factor, self._drift_seconds = drift_factor, drift_seconds
        if not 0 < node_timeout < self._validity(ttl):
            raise ValueError(f"ttl must be far longer than node_timeout and the drift, not {ttl!r}")
        if not 0 < retry_delay < math.inf:
            raise ValueError(f"retry_delay must be more than 0 and finite, not {retry_delay!r}")
        self._clients = tuple(clients)  # keep the clients: a collected client closes its pool
        self._nodes = tuple(map(node_of, pools))
        self._node_timeout = node_timeout
        self._retries = retries
        self._retry_delay = retry_delay
        self._renewer = RedlockRenewer(self._nodes, node_timeout) if renew else None
        self._key = f"redlock:{name}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`. Also returns None when `retries` are used up.

        An attempt that has begun is completed, even after `timeout`. Clients that ask at the same time may split the
        votes. Then no client holds the lock, so even a non-blocking call tries again.

        Raises:
            LockUnavailable: fewer nodes than a quorum answered. The call does not try again.
            ValueError: `timeout` is out of range, or was given although `blocking` is False.
        """
        wait_seconds = wait_timeout(blocking, timeout)
        deadline = self._clock() + wait_seconds
        attempts = 0
        while True:
            lease, took = self._elect(deadline if wait_seconds else math.inf)
            if lease is not None:
                return lease
            attempts += 1
            left = deadline - self._clock()
            if left <= 0 or (self._retries is not None and attempts > self._retries):
                return None
            # Leave time for one more attempt before the deadline. It probably takes as long as the last attempt.
            longest = max(0.0, left - took)
            self._pause(min(self._delay(took) * random.uniform(0.5, 1.5), longest))  # noqa: S311 - not a secret
            if self._clock() >= deadline:
                return None

    def _delay(self, took: float) -> float:
        """Return the average pause in seconds after an attempt that took `took` seconds.

        An attempt is slow when many clients ask. If all of them asked again after the usual delay, the holder's release
        would queue behind more and more requests.
        """
        return max(self._retry_delay, PAUSE_PER_ATTEMPT * min(took, self._retry_delay))

    def _elect(self, deadline: float) -> tuple[Lease | None, float]:
        """Ask all nodes for the lock, and ask them again while the votes are split.

        If the votes are split, no client holds the lock. The nodes are asked at most `ELECTIONS` times.

        Returns:
            The lease, or None if the lock was not granted; and the seconds that the last attempt took.
        """
        for _ in range(ELECTIONS):
            begun = self._clock()
            lease, split = self._try()
            took = self._clock() - begun
            if not split:
                return lease, took
            # Rivals do not split the votes again if their pauses differ by about the length of one attempt.
            pause = random.uniform(0, min(4 * took, self._node_timeout))  # noqa: S311 - not a secret
            if self._clock() + pause >= deadline:
                break
            time.sleep(pause)
        return None, took

    def _try(self) -> tuple[Lease | None, bool]:
        """Ask all nodes once. If no quorum granted the lock in time, release the grants that were made.

        Returns:
            The lease, or None if the lock was not granted; and whether the votes were split.
        """
        token = new_token()
        started = self._clock()
        try:
            ballot = self._ask(ScriptCall("redlock_acquire", (self._key,), (token, milliseconds(self.ttl))), undo=token)
            if ballot.verdict():
                lease = self._lease(token, started, ballot)
                if not lease.lost:
                    return lease, False
        except BaseException:
            # After an interrupt, or if no thread could start, nobody will use what nodes have granted: release it.
            self._take_back(token, self._nodes)
            raise
        votes, quorum = ballot.votes(), majority(len(self._nodes))
        # A node that refused has no grant to release. A node that did not answer gets the release once more.
        self._take_back(token, [node for node in self._nodes if votes.get(node, 1) == 1])
        if len(votes) < quorum:
            raise self._unavailable(ballot)
        rivals = Counter(vote for vote in votes.values() if vote != 1)
        return None, 0 < len(votes) - rivals.total() < quorum and max(rivals.values(), default=0) < quorum

    def _lease(self, token: str, started: float, ballot: Ballot) -> Lease:
        lease = RedlockLease(
            self,
            token,
            started=started,
            ttl=self.ttl,
            on_lost=self._on_lost,
            clock=self._clock,
            validity=self._validity,
            granted={node for node, vote in ballot.votes().items() if vote == 1},
        )
        if not lease.lost and (self._renewer is not None or self._on_lost is not None):
            watchdog.watch(lease, self._renewer)
        return lease._hand_out()

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _validity(self, ttl: float) -> float:
        """Return for how many seconds, counted from the request, a grant of `ttl` seconds may be trusted."""
        return ttl * (1 - self._drift_factor) - self._drift_seconds

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return self._decide(self._ask(self.extend_call(lease, ttl)))

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        ballot = self._ask(self._release_call(lease.token), undo=lease.token)
        verdict = ballot.verdict()
        if verdict is None or lease._unanswered:
            was_held = cast(RedlockLease, lease).was_held(ballot.votes(), majority(len(self._nodes)))
            if was_held is None:
                raise self._unavailable(ballot)
            # An earlier attempt without an answer may have freed the lock. Then this attempt finds no lock, but the
            # release has succeeded: with `_unanswered`, `Lease.release` returns True once.
            lease._unanswered = was_held
        return verdict is True

    def _ask(self, call: ScriptCall, *, undo: str | None = None) -> Ballot:
        undo_calls = () if undo is None else (self._release_call(undo),)
        ballot = Ballot(self._nodes, (call,), majority(len(self._nodes)), undo=undo_calls)
        ballot.hold(self._node_timeout)
        return ballot

    def _take_back(self, token: str, nodes: Sequence[RedlockNode]) -> None:
        """Release what nodes may have granted. The quorum is 0, so the ballot does not wait for silent nodes."""
        calls = (self._release_call(token),)
        Ballot(nodes, calls, 0, undo=calls).hold(self._node_timeout)

    def _decide(self, ballot: Ballot) -> bool:
        """Return whether a quorum of nodes has said yes to a call.

        Raises:
            LockUnavailable: too few nodes answered to decide.
        """
        verdict = ballot.verdict()
        if verdict is None:
            raise self._unavailable(ballot)
        return verdict

    def _unavailable(self, ballot: Ballot) -> LockUnavailable:
        reasons = "; ".join(f"node {self._nodes.index(node) + 1}: {reason}" for node, reason in ballot.reasons())
        return LockUnavailable(
            f"Only {len(ballot.votes())} of {len(self._nodes)} nodes answered for lock {self.name!r}, which is too few "
            f"to decide ({reasons}). Try again. If that does not help, check that these nodes are running and writable,"
            f" and that they answer within node_timeout, {self._node_timeout} s."
        )

    def extend_call(self, lease: Lease, ttl: float) -> ScriptCall:
        """Return the call that keeps the lock on a node for `ttl` seconds from now. The renewer uses it too."""
        return ScriptCall("redlock_extend", (self._key,), (lease.token, milliseconds(ttl)))

    def _release_call(self, token: str) -> ScriptCall:
        return ScriptCall("redlock_release", (self._key,), (token,))


class RedlockLease(Lease):
    """Lease of a `Redlock`. It remembers which nodes may have freed the lock at an earlier call of `release`.

    If too few nodes answer, the caller calls `release` again. A node may have freed the lock at the first call,
    although its answer was lost. At the next call, this node answers no. Such a no counts as a yes.

    Args:
        granted: the nodes that granted the lease. All others refused it, or their grant was taken back.
    """

    __slots__ = ("_freed", "_granted")

    def __init__(self, *args: Any, granted: set[RedlockNode], **options: Any) -> None:
        super().__init__(*args, **options)
        self._granted = granted
        self._freed: set[RedlockNode] = set()

    def was_held(self, votes: dict[RedlockNode, Any], quorum: int) -> bool | None:
        """Return whether a quorum still had the lease when it was first released; None while that is undecided.

        A node may leave one release request unanswered, and answer no to the next one. If this node had granted the
        lease, it counts as a node that has released the lease.

        Args:
            votes: the answers of the nodes to one more release request.
            quorum: number of nodes that decide.
        """
        with self._mutex:
            for node, vote in votes.items():
                if vote == 1 or (self._unanswered and node in self._granted):
                    self._freed.add(node)
                else:
                    self._granted.discard(node)  # the node has lost the grant
            if len(self._freed) >= quorum:
                return True
            return False if len(self._freed | self._granted) < quorum else None


@dataclass(frozen=True)
class RedlockRenewer:
    """Extends the leases of all Redlocks that have the same `nodes` and `node_timeout`, in one round trip.

    Implements `locking.renewal.Renewer`.

    Attributes:
        nodes: all nodes of the leases.
        node_timeout: seconds that all nodes together have to answer.
    """

    nodes: tuple[RedlockNode, ...]
    node_timeout: float

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease by its TTL, in one round trip. See `locking.renewal.Renewer.renew`."""
        calls = [cast(Redlock, lease._lock).extend_call(lease, lease.ttl) for lease in leases]
        ballot = Ballot(self.nodes, calls, majority(len(self.nodes)))
        ballot.hold(min(seconds, self.node_timeout))
        verdicts = [ballot.verdict(index) for index in range(len(calls))]
        if None in verdicts:
            reasons = "; ".join(str(reason) for _, reason in ballot.reasons())
            logger.warning("%d leases were not renewed (%r); the watchdog tries again.", verdicts.count(None), reasons)
        return verdicts

    def close(self) -> None:
        """Do nothing: the connections belong to the nodes, which the locks share."""


def majority(nodes: int) -> int:
    """Return the size of a majority of `nodes` nodes. Any two majorities have a node in common."""
    return nodes // 2 + 1
