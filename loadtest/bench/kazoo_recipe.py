"""The lock of the package kazoo, wrapped as one of our locks for comparison with `ZooKeeperLock`.

Do not use it in production: it has no fencing token and no TTL. After the client's session has ended, a lease still
reports that it is held, until it is released.

Source: https://kazoo.readthedocs.io/en/latest/api/recipe/lock.html
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from kazoo.exceptions import KazooException
from kazoo.exceptions import LockTimeout as KazooLockTimeout

from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.recipe.lock import Lock as Recipe

ROOT = "/kazoo"


class KazooRecipeLock(Lock):
    """The `Lock` of kazoo. Each attempt creates a new kazoo lock, because the object holds the state of one grant.

    Args:
        client: a started client.
        name: lock name.
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        fair=True,
        quiet_wait=True,
        survives_holder_crash=True,
        survives_restart=True,
    )

    def __init__(self, client: KazooClient, name: str) -> None:
        super().__init__(name, ttl=math.inf)
        self._client = client
        self._queue_path = f"{ROOT}/{quote(name, safe='').replace('.', '%2E')}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Wait in ZooKeeper's queue until the lock is granted or the time is over. See `Lock.acquire`."""
        wait_timeout(blocking, timeout)
        recipe = self._client.Lock(self._queue_path)
        started = time.monotonic()
        try:
            if not recipe.acquire(blocking=blocking, timeout=timeout):
                return None
        except KazooLockTimeout:
            return None
        except KazooException as error:
            raise LockUnavailable(f"ZooKeeper did not answer for lock {self.name!r}. Try again.") from error
        lease = RecipeLease(self, recipe.prefix, started=started, ttl=math.inf, clock=time.monotonic, recipe=recipe)
        return lease._hand_out()

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return True

    def _release(self, lease: Lease) -> bool:
        try:
            return bool(cast(RecipeLease, lease).recipe.release())
        except KazooException as error:
            raise LockUnavailable(
                f"ZooKeeper did not confirm the release of lock {self.name!r}. Release again."
            ) from error


class RecipeLease(Lease):
    """A lease that stores kazoo's lock object. The lock object releases the lease."""

    __slots__ = ("recipe",)

    def __init__(self, *args: Any, recipe: Recipe, **options: Any) -> None:
        super().__init__(*args, **options)
        self.recipe = recipe
