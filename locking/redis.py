"""RedisLock: a lock on one Redis or Valkey server. Two round trips a pair; fence, renewal and wake-up included.

Keys, all under one hash tag, so that they are on one node of a cluster:

    lock:{name}             the holder's token; expires after the TTL
    lock:{name}:fence       the last fence given; expires when nobody has asked for long
    lock:{name}:waiters     who waits, scored with the time until which he counts as alive
    lock:{name}:wake        one element when the lock was freed and a waiter should look
    lock:{name}:bell:<id>   wakes one waiter from its blocked pop when it wants to leave; lives for a moment
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import redis

from locking.base import Capabilities, Lock, patience
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.renewal import watchdog
from locking.waiting import Waiter
from locking.wire import Call, Line, request

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

logger = logging.getLogger(__name__)

SHORTEST_PATIENCE = 1.0
"""Seconds. A server may take so long to answer although the caller's timeout, which is for the lock, is shorter."""


class RedisLock(Lock):
    """A lock on one server: owner token, fence, renewal, and waiters that sleep until they are woken.

    Waiters are woken one at a time, in the order in which they block, but whoever asks at that moment may be quicker:
    the lock is not fair. A waiter that nobody wakes looks again when the present grant expires, and then once a TTL.

    It excludes others for as long as the server keeps its data and nobody sets its clock forward. One that fails over
    to a replica which has not seen the grant yet may grant the lock twice. The fence, checked where you write, covers
    that as well as a paused holder.

    A waiter uses one connection of the client's pool and, now and then, a second one: allow for two a waiting thread.
    Give the client a `socket_timeout`, and few retries: connecting follows them and comes on top of every time limit.

    Args:
        client: any `redis.Redis`, of a server from Redis 7 or Valkey 7.2 on.
        name: what is locked; no braces.
        ttl: seconds after which the lock is free again when its holder has died. Several times the longest pause that
            a holder should survive (garbage collection, network); not the length of the work, which renewal covers.
        renew: let the watchdog of the process extend the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: the name is empty or contains braces, or `ttl` is not a usable time.
    """

    capabilities = Capabilities(fenced=True, renews=True, quiet_wait=True, survives_holder_crash=True)

    def __init__(
        self,
        client: Redis,
        name: str,
        *,
        ttl: float = 10.0,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=ttl)
        if "{" in name or "}" in name:
            raise ValueError(f"the name of a Redis lock may not contain braces, they mark the hash tag: {name!r}")
        if ttl == math.inf:
            raise ValueError("a Redis lock needs a finite ttl: without one a crashed holder would keep it for ever")
        self._client = client
        self._on_lost = on_lost
        self._clock = clock
        self._renewer = RedisRenewer(client.connection_pool) if renew else None
        key = f"lock:{{{name}}}"
        self._key, self._fence, self._waiters, self._wake = key, f"{key}:fence", f"{key}:waiters", f"{key}:wake"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. A server that does not answer is waited for a second, however short `timeout` is."""
        waits = patience(blocking, timeout)
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
            with suppress(LockUnavailable, redis.RedisError):
                self._send(self._release_call(token), SHORTEST_PATIENCE)
            raise

    def _ask(self, token: str, deadline: float, *, waits: bool, on: Any = None) -> Lease | float:
        """Ask once and return the lease, or the seconds after which to look again when nobody wakes us."""
        started = self._clock()
        granted, figure = request(
            self._client,
            self.name,
            Call("acquire", (self._key, self._fence, self._waiters), (token, milliseconds(self.ttl), int(waits))),
            # A grant that is answered after the TTL is worth nothing.
            seconds=min(self.ttl, max(deadline - started, SHORTEST_PATIENCE)),
            on=on,
            undo=lambda: (self._release_call(token), self._leave_call(token, blocked=False)),
        )
        if not granted:
            # A key expires when its last millisecond is over. One that does not expire was not set by a lock.
            return min((figure + 1) / 1000, self.ttl) if figure >= 0 else self.ttl
        lease = Lease(
            self, token, started=started, ttl=self.ttl, fence=figure, on_lost=self._on_lost, clock=self._clock
        )
        if self._renewer is not None or self._on_lost is not None:
            watchdog.watch(lease, self._renewer)
        return lease

    def _wait(self, token: str, deadline: float, pause: float) -> Lease | None:
        with Waiter(self._client, self.name, self._bell(token), self._wake, partial(self._leave, token)) as waiter:
            while (left := deadline - self._clock()) > 0:
                woken = waiter.wait(min(pause, left), left)
                if not woken and left <= pause:
                    break
                answer = self._ask(token, deadline, waits=True, on=waiter.idle_connection)
                if isinstance(answer, Lease):
                    waiter.granted = True
                    return answer
                # Nobody woke us and it is still held, so somebody renews it: from now on once a TTL will do.
                pause = answer if woken else self.ttl
        return None

    def _leave(self, token: str, blocked: bool) -> None:  # noqa: FBT001 - a callback
        self._send(self._leave_call(token, blocked=blocked), SHORTEST_PATIENCE)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return bool(self._send(self.extend_call(lease.token, ttl), max(lease.remaining(), SHORTEST_PATIENCE)))

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return bool(self._send(self._release_call(lease.token), self.ttl))

    def _send(self, call: Call, seconds: float) -> Any:
        return request(self._client, self.name, call, seconds=seconds)

    def extend_call(self, token: str, ttl: float) -> Call:
        """Return the call that keeps the lock for `ttl` seconds from now if the token holds it. For the renewer."""
        return Call("extend", (self._key, self._fence), (token, milliseconds(ttl)))

    def _release_call(self, token: str) -> Call:
        return Call("release", (self._key, self._waiters, self._wake), (token, milliseconds(self.ttl)))

    def _leave_call(self, token: str, *, blocked: bool) -> Call:
        keys = (self._key, self._waiters, self._wake, self._bell(token))
        return Call("leave", keys, (token, milliseconds(self.ttl), int(blocked)))

    def _bell(self, token: str) -> str:
        return f"{self._key}:bell:{token.partition(':')[0]}"


class RedisRenewer:
    """Extends all leases on the servers of one pool, over a line of its own. See `locking.renewal.Renewer`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._line = Line(pool)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RedisRenewer) and other._pool is self._pool

    def __hash__(self) -> int:
        return hash((RedisRenewer, id(self._pool)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """See `Renewer.renew`."""
        try:
            answers = self._line.run([_extension(lease) for lease in leases], seconds)
        except redis.RedisError as error:
            logger.warning("%d leases were not renewed (%s); it is tried again.", len(leases), error)
            return [None] * len(leases)
        for answer in answers:
            if isinstance(answer, Exception):
                logger.warning("A lease was not renewed (%s); it is tried again.", answer)
        return [None if isinstance(answer, Exception) else bool(answer) for answer in answers]

    def close(self) -> None:
        """See `Renewer.close`."""
        self._line.close()


def _extension(lease: Lease) -> Call:
    return cast(RedisLock, lease._lock).extend_call(lease.token, lease.ttl)


def new_token() -> str:
    """Return what makes one grant different from every other: 128 random bits, and for people to read, who asks.

    The label is host, process and thread. It tells nobody apart: addresses, process ids and thread names repeat.
    """
    label = f"{_host()}:{os.getpid()}:{threading.current_thread().name}"
    return f"{secrets.token_hex(16)}:{label.encode('ascii', 'backslashreplace')[:100].decode()}"


@cache
def _host() -> str:
    return socket.gethostname()


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds, never fewer."""
    return math.ceil(seconds * 1000)
