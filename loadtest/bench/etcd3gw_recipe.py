"""The lock of the package etcd3gw, wrapped as one of our locks for comparison.

It has no queue, so a waiter polls. Each attempt creates an etcd lease. A failed attempt and a release do not revoke the
lease, so leases collect on the server until they expire. There is no fencing token, and forked children share their
parent's connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import requests
from etcd3gw.exceptions import Etcd3Exception

from locking import Capabilities, Lease, Lock, LockUnavailable
from locking.lock import wait_timeout
from locking.renewal import watchdog

if TYPE_CHECKING:
    from etcd3gw import Etcd3Client
    from etcd3gw.lock import Lock as Recipe

PAUSE = 0.05
"""Seconds between two attempts."""


class Etcd3gwLock(Lock):
    """The `Lock` of etcd3gw.

    Args:
        client: a client of etcd3gw; its timeout limits every request.
        name: lock name, in Latin-1 characters.
        ttl: whole seconds. etcd may grant a longer TTL: by default, its shortest TTL is two seconds.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.
    """

    capabilities = Capabilities(across_processes=True, across_machines=True, expires=True, survives_holder_crash=True)

    def __init__(
        self,
        client: Etcd3Client,
        name: str,
        *,
        ttl: float = 10.0,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=ttl)
        self._client = client
        self._on_lost = on_lost
        self._clock = clock

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Try until the lock is granted or the time is over. See `Lock.acquire`."""
        deadline = self._clock() + wait_timeout(blocking, timeout)
        recipe = self._client.lock(self.name, ttl=int(self.ttl))
        while True:
            started = self._clock()
            with self._answered():
                granted = recipe.acquire()
            if granted:
                lease = Etcd3gwLease(
                    self,
                    recipe.uuid,
                    started=started,
                    ttl=self.ttl,
                    on_lost=self._on_lost,
                    clock=self._clock,
                    recipe=recipe,
                )
                if self._on_lost is not None:
                    watchdog.watch(lease, None)
                return lease
            left = deadline - self._clock()
            if left <= 0:
                return None
            time.sleep(min(PAUSE, left))

    def _extend(self, lease: Lease, ttl: float) -> bool:
        with self._answered():
            return cast(Etcd3gwLease, lease).recipe.refresh() > 0

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        with self._answered():
            return cast(Etcd3gwLease, lease).recipe.release()

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except (Etcd3Exception, requests.RequestException) as error:
            raise LockUnavailable(f"etcd did not answer for lock {self.name!r} ({error!r}). Try again.") from error


class Etcd3gwLease(Lease):
    """A lease that stores etcd3gw's lock object. The lock object renews and releases the lease."""

    __slots__ = ("recipe",)

    def __init__(self, *args: Any, recipe: Recipe, **options: Any) -> None:
        super().__init__(*args, **options)
        self.recipe = recipe
