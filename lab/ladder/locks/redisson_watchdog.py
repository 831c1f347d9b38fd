"""Sound lock: Redisson's way of counting entries, waking waiters and renewing."""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import replace
from itertools import count
from typing import Any

from lab.ladder.locks.rung import RenewedRung
from locking.lease import Lease
from locking.lock import wait_timeout
from locking.redis.connection import milliseconds

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
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""


class RedissonWatchdog(RenewedRung):
    """Sound, as long as its server keeps its data and the watchdog runs. Unfair: a release wakes all waiters at once.

    The lock is a hash with the owner and a count. A release publishes a message. A waiter subscribes and then asks once
    more, because a release before its subscription could not wake it. It also asks at the end of the present TTL,
    because a holder that dies publishes nothing. So no waiter depends on a message, as it does on `lost-wake-up`.

    Source: article 002 (sections 4.1.1 to 4.1.5), which describes Redisson's `lock()` without a lease time.
    """

    capabilities = replace(RenewedRung.capabilities, reentrant=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._thread = threading.local()
        self._grants = count(1)

    def owner(self) -> str:
        """Return a random name of this thread. A thread id is not enough: Python reuses the ids of ended threads."""
        if not hasattr(self._thread, "name"):
            self._thread.name = secrets.token_hex(16)
        return f"{self._thread.name}-{os.getpid()}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`."""
        deadline, owner = self._clock() + wait_timeout(blocking, timeout), self.owner()
        answer = self._ask(owner)
        if isinstance(answer, Lease) or self._clock() >= deadline:
            return answer if isinstance(answer, Lease) else None
        with self._errors_as_unavailable(), self.client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(self.key)
            while not isinstance(answer := self._ask(owner), Lease):
                if self._clock() >= deadline:
                    return None
                self._wait(subscription, min(deadline, self._clock() + answer))
        return answer

    def _ask(self, owner: str) -> Lease | float:
        """Try once to acquire the lock.

        Returns:
            The lease, or the seconds until the grant of another client expires if it is not renewed.
        """
        started = self._clock()
        with self._errors_as_unavailable():
            left = self.client.eval(TAKE, 1, self.key, owner, self.milliseconds)
        # Each grant has a token of its own, so that the inner release does not end the renewal of the outer grant.
        return self._grant(f"{owner} {next(self._grants)}", started) if left is None else left / 1000

    def _wait(self, subscription: Any, until: float) -> None:
        """Sleep until a release is published, or until the time `until` on the lock's clock."""
        while (left := until - self._clock()) > 0 and not subscription.get_message():
            self._nap(left)  # The next check reads messages that have arrived here. It sends the server nothing.

    def take(self, owner: str) -> bool:
        return self.client.eval(TAKE, 1, self.key, owner, self.milliseconds) is None

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(FREE, 1, self.key, owner.partition(" ")[0]))

    def prolong(self, owner: str) -> bool:
        return bool(self.client.eval(EXTEND, 1, self.key, owner.partition(" ")[0], self.milliseconds))

    def _extend(self, lease: Lease, ttl: float) -> bool:
        with self._errors_as_unavailable():
            owner = lease.token.partition(" ")[0]
            return bool(self.client.eval(EXTEND, 1, self.key, owner, milliseconds(ttl)))
