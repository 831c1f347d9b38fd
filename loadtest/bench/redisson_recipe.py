"""Redisson's lock protocol as one of our locks, for comparison with `RedisLock`. It is not the Java library.

The lock is a hash with owner and count. A release is published to all waiters. Waiters try again when they receive this
message, and when the present grant expires. There is no queue and no fencing token.

Do not use it in production. If a client repeats a request whose answer was lost, the owner may be counted twice, and
the lock stays held for its TTL. If a server hangs, a lost lease is reported only after the timeout of the client.

Source: https://github.com/redisson/redisson/wiki/8.-distributed-locks-and-synchronizers
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import redis

from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.redis.connection import milliseconds
from locking.renewal import watchdog

if TYPE_CHECKING:
    from redis import Redis

TAKE = """
-- KEYS: the lock. ARGV: the owner, its TTL in milliseconds. Returns nothing if granted, else the milliseconds left.
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return false
end
return redis.call('PTTL', KEYS[1])
"""
FREE = """
-- KEYS: the lock. ARGV: the owner. Returns 1 if the owner holds it once less, else 0. Publishes the last release.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', KEYS[1], 'released')
end
return 1
"""
EXTEND = """
-- KEYS: the lock. ARGV: the owner, the TTL in milliseconds. Returns 1 if the lock was the owner's and goes on, else 0.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
return 1
"""


class RedissonRecipeLock(Lock):
    """A re-entrant lock whose release wakes all waiters; chance decides which of them gets the lock.

    An owner is one thread with one lock object. Each grant has its own token, which begins with the owner's name.

    Args:
        client: a client of one server; a waiter uses one more of its connections.
        name: lock name.
        ttl: seconds; Redisson calls this time `lockWatchdogTimeout`, and uses 30 s by default.
        renew: whether the watchdog extends the lease. Redisson extends no lease for which a lease time is given.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        reentrant=True,
        expires=True,
        renews=True,
        forks=True,
        survives_holder_crash=True,
        survives_restart=True,
    )

    def __init__(
        self,
        client: Redis,
        name: str,
        *,
        ttl: float = 30.0,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=ttl, on_lost=on_lost, clock=clock)
        self._client = client
        self._renew = renew
        self._key = f"redisson:{name}"  # key of the hash, and name of the channel
        self._take, self._free, self._extend_by = map(client.register_script, (TAKE, FREE, EXTEND))
        self._thread = threading.local()
        self._grants = count(1)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Try, then wait for releases, until the lock is granted or the time is over. See `Lock.acquire`."""
        deadline, owner = self._clock() + wait_timeout(blocking, timeout), self._owner()
        answer = self._ask(owner)
        if not isinstance(answer, Lease) and self._clock() < deadline:
            with self._answered(), self._client.pubsub(ignore_subscribe_messages=True) as subscription:
                subscription.subscribe(self._key)
                # Try again immediately: the waiter has missed a release that came before this subscription.
                while not isinstance(answer := self._ask(owner), Lease) and (now := self._clock()) < deadline:
                    self._wait(subscription, min(deadline, now + answer))
        return answer if isinstance(answer, Lease) else None

    def _owner(self) -> str:
        """Return the owner name of this thread. A thread id is not enough, because Python uses it again later."""
        if not hasattr(self._thread, "name"):
            self._thread.name = secrets.token_hex(16)
        return f"{self._thread.name}-{os.getpid()}"

    def _ask(self, owner: str) -> Lease | float:
        """Try once to take the lock. Return the lease, or the seconds until the grant of the present owner expires."""
        started = self._clock()
        left = self._run(self._take, owner, milliseconds(self.ttl))
        if left is not None:
            return float(left) / 1000
        token = f"{owner} {next(self._grants)}"
        lease = Lease(self, token, started=started, ttl=self.ttl, on_lost=self._on_lost, clock=self._clock)
        if self._renew or self._on_lost is not None:
            watchdog.watch(lease, self if self._renew else None)
        return lease._hand_out()

    def _wait(self, subscription: Any, until: float) -> None:
        """Sleep until a release is published, at most until the time `until`."""
        while (left := until - self._clock()) > 0 and not subscription.get_message(timeout=left):
            pass  # This message was the confirmation of the subscription.

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease, see `Renewer.renew`. The client's own timeouts limit the time."""
        return [self._renewed(lease) for lease in leases]

    def _renewed(self, lease: Lease) -> bool | None:
        try:
            return self._extend(lease, lease.ttl)
        except LockUnavailable:
            return None

    def close(self) -> None:
        """Do nothing: the watchdog uses connections of the client, which must stay open."""

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return bool(self._run(self._extend_by, _owner_of(lease), milliseconds(ttl)))

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return bool(self._run(self._free, _owner_of(lease)))

    def _run(self, script: Callable[..., Any], *arguments: str | int) -> Any:
        with self._answered():
            return script(keys=[self._key], args=arguments)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise LockUnavailable(f"Redis did not answer for lock {self.name!r} ({error!r}). Try again.") from error


def _owner_of(lease: Lease) -> str:
    return lease.token.partition(" ")[0]
