"""RedisLock: a fair, fenced, renewed lock on one Redis or Valkey server. Acquire and release take a round trip each.

Keys. The braces are a hash tag, which keeps all keys of a lock on one node of a cluster.

    lock:{name}             token of the holder; expires after the TTL
    lock:{name}:fence       last fence, and the label of its holder; expires if the lock is unused for a long time
    lock:{name}:waiters     sorted set of waiters; the score is the time until which a waiter counts as alive
    lock:{name}:wake        list with the last offer: a grant for the waiter that pops it first; waiters block on it
    lock:{name}:bell:<id>   list that wakes one waiter from its blocked pop when it leaves; short-lived
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import redis
from redis.cluster import RedisCluster

from locking._ids import new_token, owner_label
from locking.arguments import require_count, require_flag
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.local import QueuePlace, has_queue
from locking.lock import Capabilities, Lock, wait_timeout
from locking.redis.arguments import require_redis, require_tag
from locking.redis.connection import ScriptCall, milliseconds, pool_of, run_script
from locking.redis.lease import RedisLease
from locking.redis.renewal import RedisRenewer, RenewalConnection
from locking.redis.waiting import Waiter
from locking.renewal import RENEWALS_PER_TTL, watchdog

if TYPE_CHECKING:
    from locking.redis.connection import Client

MIN_ANSWER_TIMEOUT = 1.0
"""Minimum seconds that the server has to answer, unless the TTL is shorter.

The `timeout` of a caller limits only the wait for the lock.
"""


class RedisLock(Lock):
    """A lock on one Redis or Valkey server, with owner token, fence, renewal, and direct hand-over to waiters.

    Waiting. If there are waiters, a release does not free the lock; it offers the lock to the waiter that has slept
    longest. The offer wakes this waiter and is its grant, so a newcomer cannot overtake a sleeping waiter. Waiters are
    served in the order in which they fall asleep: a waiter that was refused, but falls asleep only a round trip later,
    can be overtaken. If no release wakes a waiter, it asks for the lock again as soon as the present grant should
    expire, and then once per TTL. If the lock is free then, the server offers it to the waiter that has slept longest.

    Dead waiters. A waiter whose connection is gone is skipped. If all waiters are dead, the offer of a release goes to
    the next caller. If the holder has died too, the next request makes the server offer the lock to the dead waiters.
    So this request is refused, and the request after it gets the lock. Until a waiter takes an offer, the lock has no
    holder. A waiter can also be stopped while its connection lives (SIGSTOP, a frozen machine). An offer to this waiter
    delays the others for the TTL of the releasing client. They ask again within one TTL of their own after that.

    Limits. Mutual exclusion holds as long as the server keeps its data and its clock is not set forward. A failover to
    a replica that has not received the grant may grant the lock twice. The fence protects in this case, and against a
    paused holder: check it where you write. The fence is the server's time in microseconds, or the last fence + 1 if
    that is greater. It decreases only if the server has lost the last fence, and the server's clock is behind that
    fence. The last fence may be lost in a restart, or if a replica without that grant is promoted. It is also lost if
    its key is evicted or deleted. The key expires ten TTLs, and at least a minute, after the last grant or renewal.

    Order. Processes get the lock in the order in which they began to wait. Threads of one process take turns in order
    of arrival, so a thread may get the lock after a later thread of another process.

    Connections. The lock opens connections of its own, with the settings of the client's pool, and never waits for a
    connection of the pool. If several threads of a process wait for the lock, one of them sleeps at the server. The
    others queue behind this thread in the process, in order of arrival, each within its own timeout. A process thus
    uses one connection for each lock that it waits for, and one for each running request. For renewals, it uses one
    connection for all locks whose clients share a connection pool; with a cluster client, one for each node. Give the
    client a `socket_timeout` and few retries, because the time to connect comes on top of every time limit.

    Args:
        client: any `redis.Redis`, including one from Sentinel, or a `RedisCluster`. Needs Redis 7 or Valkey 7.2.
        name: name of the lock, such as `stock:sku-42`. It must not contain braces.
        ttl: lifetime of a grant in seconds, unless it is extended. A lock whose holder has died is free after this
            time. Use several times the longest pause that a holder should survive (garbage collection, network). The
            work may take longer, because leases are renewed.
        wait_for_replicas: number of replicas that must have a grant before it counts (WAIT). A failover is then less
            likely to lose a grant, but still may: a replica without the grant may be promoted. Costs one more round
            trip per grant and per batch of renewals.
        renew: whether the watchdog of the process extends the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.

    Raises:
        TypeError: the client is of another class, such as a client for asyncio, a client of the package valkey, or a
            pipeline; or another argument has the wrong type.
        ValueError: the name is empty, contains braces, or cannot be encoded as UTF-8; or `ttl` or `wait_for_replicas`
            is out of range.

    Source: redis-py's `Lock` and "Distributed Locks with Redis",
    https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        fenced=True,
        fair=True,
        expires=True,
        renews=True,
        quiet_wait=True,
        forks=True,
        survives_holder_crash=True,
        survives_restart=True,
    )

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: float = 10.0,
        wait_for_replicas: int = 0,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_redis(client, redis.Redis, RedisCluster)
        super().__init__(name, ttl=ttl, on_lost=on_lost, clock=clock)
        require_flag("renew", renew)
        name = require_tag(name)
        self._client = client
        self._replicas = require_count("wait_for_replicas", wait_for_replicas)
        self._renewer = RedisRenewer(client) if renew else None
        key = f"lock:{{{name}}}"
        self._queue = (getattr(client, "connection_pool", client), key)
        self._key, self._fence, self._waiters, self._wake = key, f"{key}:fence", f"{key}:waiters", f"{key}:wake"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`.

        Even if `timeout` is less, the server has a second to answer, or the TTL if that is shorter.

        Raises:
            LockUnavailable: the server could not be reached, did not answer, refused a request, or answered after the
                TTL; or fewer than `wait_for_replicas` replicas have the grant.
            ValueError: `timeout` is out of range, or was given although `blocking` is False.
        """
        wait_seconds = wait_timeout(blocking, timeout)
        deadline = self._clock() + wait_seconds
        token = new_token()
        try:
            refused = None
            # If other threads of this process wait for the lock, a caller that is allowed to wait joins their queue. It
            # asks the server when its turn comes.
            if wait_seconds == 0 or not has_queue(self._queue):
                answer = self._ask(token, deadline, waits=wait_seconds > 0)
                if isinstance(answer, Lease):
                    return answer
                refused = answer
            return self._wait(token, deadline, refused) if wait_seconds > 0 else None
        except LockUnavailable:
            raise
        except BaseException:
            # After an interrupt, or if no renewal thread could start, the caller gets no lease: give up the grant.
            # Also remove this waiter's entry from the list, or others would wait for a waiter that is gone.
            self._give_up(token)
            self._strike(token)
            raise

    def _ask(self, token: str, deadline: float, *, waits: bool, on: Any = None) -> Lease | NotGranted:
        """Ask the server once for the lock. Return the lease or the refusal."""
        started = self._clock()
        keys = (self._key, self._fence, self._waiters, self._wake)
        granted, figure = run_script(
            self._client,
            self.name,
            ScriptCall("acquire", keys, (token, milliseconds(self.ttl), int(waits), owner_label()), self._replicas),
            # Wait for an answer no longer than the TTL: a grant in a later answer would be over already.
            seconds=min(self.ttl, max(deadline - started, MIN_ANSWER_TIMEOUT)),
            on=on,
            undo=lambda: (self._release_call(token), self._leave_call(token, blocked=False)),
        )
        if granted:
            try:
                return self._watched(self._lease(token, figure, started))
            except LockUnavailable:
                self._give_up(token)
                raise
        # The key expires after its last millisecond, so add one millisecond. A key without an expiry was not set by a
        # lock.
        return NotGranted(started, min((figure + 1) / 1000, self.ttl) if figure >= 0 else self.ttl)

    def _wait(self, token: str, deadline: float, refused: NotGranted | None) -> Lease | None:
        """Wait until the lock is granted, and return the lease, or None if the deadline passes first.

        Args:
            token: token of the waiter.
            deadline: when to give up, on the lock's clock.
            refused: the answer to the waiter's first request; None if it has not asked yet.
        """
        leave, strike = partial(self._leave, token), partial(self._strike, token)
        give_up = partial(self._give_up, waited_as=token)
        pool = pool_of(self._client, self._key)
        # `asked` is the time of the last request that was refused before the pop began. A popped grant was made later,
        # so counting its lifetime from `asked` is safe.
        asked = look_at = -math.inf
        if refused is not None:
            asked, look_at = refused.asked, self._clock() + refused.pause
        with (
            QueuePlace(self._queue) as place,
            Waiter(pool, self.name, self._bell(token), self._wake, leave, strike, give_up) as waiter,
        ):
            waiter.listed = refused is not None
            # One thread of the process waits at the server. The others wait here, each within its own timeout.
            if not place.wait_for_turn(time.monotonic() + deadline - self._clock()):
                return None
            while (left := deadline - self._clock()) > 0:
                pause = look_at - self._clock()
                grant = waiter.wait(min(pause, left), left) if pause > 0 else None
                if grant is not None:
                    lease = self._accept(grant, token, asked, on=waiter.idle_connection)
                    if lease is not None:
                        waiter.granted = True
                        return lease
                    waiter.grant = None
                elif left <= pause:
                    break
                still_blocked = waiter.blocked
                waiter.listed = True
                answer = self._ask(token, deadline, waits=True, on=waiter.idle_connection)
                if isinstance(answer, Lease):
                    waiter.granted = True
                    return answer
                asked = asked if still_blocked else answer.asked
                # If the pop is still blocked, no release has woken this waiter, although the grant should have expired.
                # So the holder must be renewing it: ask again only after a TTL.
                look_at = self._clock() + (self.ttl if still_blocked else answer.pause)
            grant = waiter.leave()
            lease = None if grant is None else self._accept(grant, token, asked)
            waiter.granted = lease is not None
            return lease

    def _accept(self, grant: str, waited_as: str, asked: float, on: Any = None) -> Lease | None:
        """Return the lease of a grant that this waiter has popped, or None if the grant is over.

        The lifetime is counted from `asked`, see `_wait`. The grant is extended first in three cases: much of its
        lifetime may have passed; another client made it with another TTL; or replicas must confirm it.
        """
        fence, ttl = (int(part) for part in grant.split()[:2])
        lease = self._lease(grant, fence, asked, waited_as=waited_as)
        other_ttl = ttl != milliseconds(self.ttl)
        if other_ttl or self._replicas or self._clock() - asked > self.ttl / RENEWALS_PER_TTL:
            started = self._clock()
            extend = lease.extend_call(self.ttl, shorten=other_ttl)
            if not run_script(self._client, self.name, extend, seconds=MIN_ANSWER_TIMEOUT, on=on):
                return None
            lease = self._lease(grant, fence, started, waited_as=waited_as)
        return self._watched(lease)

    def _lease(self, token: str, fence: int, started: float, *, waited_as: str = "") -> RedisLease:
        return RedisLease(
            self,
            token,
            started=started,
            ttl=self.ttl,
            fence=fence,
            on_lost=self._on_lost,
            clock=self._clock,
            keys=(self._key, self._fence, self._waiters),
            holder=owner_label(),
            waited_as=waited_as,
            replicas=self._replicas,
        )

    def _watched(self, lease: Lease) -> Lease:
        self._require_time_left(lease)
        if self._renewer is not None or self._on_lost is not None:
            watchdog.watch(lease, self._renewer)
        return lease._hand_out()

    def _leave(self, token: str, blocked: bool) -> None:  # noqa: FBT001 - a callback
        self._send(self._leave_call(token, blocked=blocked), MIN_ANSWER_TIMEOUT)

    def _strike(self, token: str) -> None:
        """Remove a waiter from the list after an error. If the server cannot be reached, the entry expires."""
        with suppress(LockUnavailable, redis.RedisError):
            connection = RenewalConnection(pool_of(self._client, self._key))
            try:
                connection.run([self._leave_call(token, blocked=False)], MIN_ANSWER_TIMEOUT)
            finally:
                connection.close()

    def _give_up(self, token: str, waited_as: str = "") -> None:
        """Release a grant that may have been made. If the server cannot be reached, the grant expires by itself."""
        with suppress(LockUnavailable, redis.RedisError):
            self._send(self._release_call(token, waited_as), MIN_ANSWER_TIMEOUT)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        seconds = max(lease.remaining(), MIN_ANSWER_TIMEOUT)
        return bool(self._send(cast(RedisLease, lease).extend_call(ttl), seconds))

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return bool(self._send(self._release_call(lease.token, cast(RedisLease, lease).waited_as), self.ttl))

    def _send(self, call: ScriptCall, seconds: float) -> Any:
        return run_script(self._client, self.name, call, seconds=seconds)

    def _release_call(self, token: str, waited_as: str = "") -> ScriptCall:
        keys = (self._key, self._fence, self._waiters, self._wake)
        return ScriptCall("release", keys, (token, waited_as, milliseconds(self.ttl), new_token()))

    def _leave_call(self, token: str, *, blocked: bool) -> ScriptCall:
        return ScriptCall("leave", (self._waiters, self._bell(token)), (token, milliseconds(self.ttl), int(blocked)))

    def _bell(self, token: str) -> str:
        return f"{self._key}:bell:{token}"


FairRedisLock = RedisLock
"""Alias for readers who look for a fair lock. Every `RedisLock` is fair: a release hands the lock to the next waiter in
order."""


class NotGranted(NamedTuple):
    """The answer to a request that was refused: the lock is held, or is offered to sleeping waiters.

    Attributes:
        asked: time just before the request was sent, on the lock's clock.
        pause: seconds after which to ask again if this waiter is not woken.
    """

    asked: float
    pause: float
