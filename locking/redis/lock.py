"""RedisLock: a lock on one Redis or Valkey server. Two round trips a pair; fence, renewal and hand-over included.

Keys, all under one hash tag, so that they are on one node of a cluster:

    lock:{name}             the holder's token; expires after the TTL
    lock:{name}:fence       the last fence given, and to whom; expires when nobody has asked for long
    lock:{name}:waiters     who waits, scored with the time until which he counts as alive
    lock:{name}:wake        the grant that a release makes to whoever pops it: waiters are blocked on it
    lock:{name}:bell:<id>   wakes one waiter from its blocked pop when it wants to leave; lives for a moment
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import redis
from redis.exceptions import MovedError

from locking._ids import new_token, owner_label
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.redis.connection import Call, NoNode, PinnedConnection, pool_of, request
from locking.redis.waiting import Waiter
from locking.renewal import RENEWALS_PER_TTL, watchdog

if TYPE_CHECKING:
    from redis import ConnectionPool
    from redis.cluster import RedisCluster

    from locking.redis.connection import Client

logger = logging.getLogger(__name__)

SHORTEST_PATIENCE = 1.0
"""Seconds. A server may take so long to answer although the caller's timeout, which is for the lock, is shorter."""


LONGEST_TTL = 1e9
"""Seconds: thirty years. The server's milliseconds, ten times as many for a fence, have to fit into its numbers."""


class RedisLock(Lock):
    """A lock on one server: owner token, fence, renewal, and waiters that sleep until the lock is handed to them.

    A release with waiters does not free the lock but grants it to the one that has slept for longest, so the wake and
    the grant are one message, and a quick newcomer cannot overtake whoever sleeps. The order is that of falling asleep:
    who has asked and sleeps only a round trip later can be overtaken in between. A waiter that nobody wakes looks when
    the present grant expires, and then once a TTL; who then finds the lock free hands it to whoever has slept for
    longest. So a try that does not wait may be refused once although holder and waiters have died; the next one within
    the TTL is granted.

    A waiter whose connection is gone is passed over. One that is stopped while its connection lives (SIGSTOP, a frozen
    machine) keeps what is handed to it from the others for the TTL of whoever released, and for up to one more of
    their own until they look.

    It excludes others for as long as the server keeps its data and nobody sets its clock forward. One that fails over
    to a replica which has not seen the grant yet may grant the lock twice. The fence, checked where you write, covers
    that as well as a paused holder. It is the server's clock in microseconds, or the last fence + 1 when that is more:
    it would fall only with the clock, set back beyond the last grant while the server restarts, or of a promoted
    replica that lags by more and has not seen the grant.

    A waiter uses one connection of the client's pool and, now and then, a second one: allow for two a waiting thread.
    Give the client a `socket_timeout`, and few retries: connecting follows them and comes on top of every time limit.

    Args:
        client: any `redis.Redis`, a Sentinel's too, or a `RedisCluster`; of servers from Redis 7 or Valkey 7.2 on.
        name: what is locked; no braces.
        ttl: seconds after which the lock is free again when its holder has died. Several times the longest pause that
            a holder should survive (garbage collection, network); not the length of the work, which renewal covers.
        wait_for_replicas: how many replicas must have a grant before it counts (WAIT). It narrows the gap in which a
            failover forgets a grant, and does not close it: a replica without it may be promoted. One round trip more a
            grant, and one more a renewal of all leases that are due.
        renew: let the watchdog of the process extend the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: the name is empty or contains braces, `ttl` is not a usable time, `wait_for_replicas` is negative.
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
        super().__init__(name, ttl=ttl)
        if "{" in name or "}" in name:
            raise ValueError(f"the name of a Redis lock may not contain braces, they mark the hash tag: {name!r}")
        if ttl > LONGEST_TTL:
            raise ValueError(
                f"a Redis lock needs a finite ttl, {LONGEST_TTL:.0f} s at most: a crashed holder keeps it so long"
            )
        if wait_for_replicas < 0:
            raise ValueError(f"wait_for_replicas must be 0 or more, not {wait_for_replicas!r}")
        self._client = client
        self._on_lost = on_lost
        self._clock = clock
        self._replicas = wait_for_replicas
        self._renewer = RedisRenewer(client) if renew else None
        key = f"lock:{{{name}}}"
        self._key, self._fence, self._waiters, self._wake = key, f"{key}:fence", f"{key}:waiters", f"{key}:wake"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. A server that does not answer is waited for a second, however short `timeout` is."""
        waits = wait_timeout(blocking, timeout)
        deadline = self._clock() + waits
        token = new_token()
        try:
            answer = self._ask(token, deadline, waits=waits > 0)
            if isinstance(answer, Lease):
                return answer
            return self._wait(token, deadline, answer) if waits > 0 else None
        except LockUnavailable:
            raise
        except BaseException:
            # Interrupted, or out of threads for the renewal: nobody will use what may have been granted.
            self._give_up(token)
            raise

    def _ask(self, token: str, deadline: float, *, waits: bool, on: Any = None) -> Lease | Contended:
        """Ask once and return the lease, or when it was refused."""
        started = self._clock()
        keys = (self._key, self._fence, self._waiters, self._wake)
        granted, figure = request(
            self._client,
            self.name,
            Call("acquire", keys, (token, milliseconds(self.ttl), int(waits), owner_label()), self._replicas),
            # A grant that is answered after the TTL is worth nothing.
            seconds=min(self.ttl, max(deadline - started, SHORTEST_PATIENCE)),
            on=on,
            undo=lambda: (self._release_call(token), self._leave_call(token, blocked=False)),
        )
        if granted:
            try:
                return self._watched(self._lease(token, figure, started))
            except LockUnavailable:
                self._give_up(token)
                raise
        # A key expires when its last millisecond is over. One that does not expire was not set by a lock.
        return Contended(started, min((figure + 1) / 1000, self.ttl) if figure >= 0 else self.ttl)

    def _wait(self, token: str, deadline: float, refused: Contended) -> Lease | None:
        leave, give_up = partial(self._leave, token), partial(self._give_up, waited_as=token)
        pool = pool_of(self._client, self._key)
        # A grant that is popped is no older than the request before the pop was sent, for somebody held the lock then.
        asked, pause = refused
        with Waiter(pool, self.name, self._bell(token), self._wake, leave, give_up) as waiter:
            while (left := deadline - self._clock()) > 0:
                grant = waiter.wait(min(pause, left), left)
                if grant is not None:
                    lease = self._accept(grant, token, asked, on=waiter.idle_connection)
                    if lease is not None:
                        waiter.granted = True
                        return lease
                    waiter.grant = None
                elif left <= pause:
                    break
                sleeps_on = waiter.idle_connection is None
                answer = self._ask(token, deadline, waits=True, on=waiter.idle_connection)
                if isinstance(answer, Lease):
                    waiter.granted = True
                    return answer
                asked = asked if sleeps_on else answer.asked
                # Nobody woke us and it is still held, so somebody renews it: from now on once a TTL will do.
                pause = self.ttl if grant is None else answer.pause
            grant = waiter.leave()
            lease = None if grant is None else self._accept(grant, token, asked)
            waiter.granted = lease is not None
            return lease

    def _accept(self, grant: str, waited_as: str, asked: float, on: Any = None) -> Lease | None:
        """Return the lease of a grant that a release has made to this waiter, or None when its time is over.

        Its time is counted from `asked`. When too much of it may be over, or it is not the TTL of this lock, it is
        extended first.
        """
        fence, ttl = (int(part) for part in grant.split()[:2])
        lease = self._lease(grant, fence, asked, waited_as=waited_as)
        other = ttl != milliseconds(self.ttl)
        if other or self._replicas or self._clock() - asked > self.ttl / RENEWALS_PER_TTL:
            started = self._clock()
            extend = self.extend_call(lease, self.ttl, shorten=other)
            if not request(self._client, self.name, extend, seconds=SHORTEST_PATIENCE, on=on):
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
            holder=owner_label(),
            waited_as=waited_as,
        )

    def _watched(self, lease: Lease) -> Lease:
        if lease._ended():
            raise LockUnavailable(
                f"Lock {self.name!r} was granted too late: connecting or the answer took longer than the TTL, "
                f"{self.ttl} s. Try again; if that does not help, see to the server, or let the TTL be longer."
            )
        if self._renewer is not None or self._on_lost is not None:
            watchdog.watch(lease, self._renewer)
        return lease

    def _leave(self, token: str, blocked: bool) -> None:  # noqa: FBT001 - a callback
        self._send(self._leave_call(token, blocked=blocked), SHORTEST_PATIENCE)

    def _give_up(self, token: str, waited_as: str = "") -> None:
        """Let go of what may have been granted to us. Without a server it ends by itself."""
        with suppress(LockUnavailable, redis.RedisError):
            self._send(self._release_call(token, waited_as), SHORTEST_PATIENCE)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return bool(self._send(self.extend_call(lease, ttl), max(lease.remaining(), SHORTEST_PATIENCE)))

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return bool(self._send(self._release_call(lease.token, cast(RedisLease, lease).waited_as), self.ttl))

    def _send(self, call: Call, seconds: float) -> Any:
        return request(self._client, self.name, call, seconds=seconds)

    def extend_call(self, lease: Lease, ttl: float, *, shorten: bool = False) -> Call:
        """Return the call that keeps the lock for `ttl` seconds from now if the lease holds it. For the renewer."""
        mine = cast(RedisLease, lease)
        keys = (self._key, self._fence, self._waiters)
        note = f"{mine.fence} {mine.holder}"
        return Call("extend", keys, (mine.token, mine.waited_as, milliseconds(ttl), note, int(shorten)), self._replicas)

    def _release_call(self, token: str, waited_as: str = "") -> Call:
        keys = (self._key, self._fence, self._waiters, self._wake)
        return Call("release", keys, (token, waited_as, milliseconds(self.ttl), new_token()))

    def _leave_call(self, token: str, *, blocked: bool) -> Call:
        return Call("leave", (self._waiters, self._bell(token)), (token, milliseconds(self.ttl), int(blocked)))

    def _bell(self, token: str) -> str:
        return f"{self._key}:bell:{token}"


FairRedisLock = RedisLock
"""The name that others give to a fair lock. Every `RedisLock` is one: a release hands over in order of arrival."""


class RedisLease(Lease):
    """A lease that also knows how its grant is noted on the server.

    Args:
        holder: who holds it, for people to read.
        waited_as: the token under which the holder is on the list of waiters, if a release handed it the lock.
    """

    __slots__ = ("holder", "waited_as")

    def __init__(self, *args: Any, holder: str, waited_as: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.holder = holder
        self.waited_as = waited_as


class Contended(NamedTuple):
    """Somebody else held the lock.

    Attributes:
        asked: when the request was about to be sent, on the lock's clock.
        pause: seconds after which to look again when nobody wakes us.
    """

    asked: float
    pause: float


class RedisRenewer:
    """Extends all leases of one client, over lines of its own. See `locking.renewal.Renewer`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lines: dict[ConnectionPool, PinnedConnection] = {}

    @property
    def _servers(self) -> object:
        """What two clients of the same servers share: a pool, or the client of a cluster itself."""
        return getattr(self._client, "connection_pool", self._client)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RedisRenewer) and other._servers is self._servers

    def __hash__(self) -> int:
        return hash((RedisRenewer, id(self._servers)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """See `Renewer.renew`. The nodes of a cluster are asked one after the other."""
        until = time.monotonic() + seconds
        at: dict[ConnectionPool, list[Lease]] = {}
        answers: dict[str, bool | None] = {}
        for lease in leases:
            try:
                pool = pool_of(self._client, _extension(lease).keys[0])
            except NoNode as error:
                logger.warning("A lease was not renewed (%s); it is tried again.", error)
                answers[lease.token] = None
            else:
                at.setdefault(pool, []).append(lease)
        for pool, mine in at.items():
            for lease, answer in zip(mine, self._renew(pool, mine, until - time.monotonic()), strict=True):
                answers[lease.token] = answer
        return [answers[lease.token] for lease in leases]

    def _renew(self, pool: ConnectionPool, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        try:
            answers = self._lines.setdefault(pool, PinnedConnection(pool)).run(
                [_extension(lease) for lease in leases], seconds
            )
        except redis.RedisError as error:
            logger.warning("%d leases were not renewed (%s); it is tried again.", len(leases), error)
            return [None] * len(leases)
        for answer in answers:
            if isinstance(answer, MovedError):
                cast("RedisCluster", self._client).nodes_manager.move_slot(answer)
            if isinstance(answer, Exception):
                logger.warning("A lease was not renewed (%s); it is tried again.", answer)
        return [None if isinstance(answer, Exception) else bool(answer) for answer in answers]

    def close(self) -> None:
        """See `Renewer.close`."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


def _extension(lease: Lease) -> Call:
    return cast(RedisLock, lease._lock).extend_call(lease, lease.ttl)


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds, never fewer."""
    return math.ceil(seconds * 1000)
