"""KazooRecipeLock: kazoo's own lock behind our contract, to compare `ZooKeeperLock` with. Not to be shipped.

It has no fence and no time: a lease says that it is held until it is released, whatever became of the session.

Source: https://kazoo.readthedocs.io/en/latest/api/recipe/lock.html
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from kazoo.exceptions import KazooException
from kazoo.exceptions import LockTimeout as NotInTime

from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.recipe.lock import Lock as Recipe

ROOT = "/kazoo"


class KazooRecipeLock(Lock):
    """kazoo's recipe, a new one for each try, as it is the holder's state too.

    Args:
        client: a started client.
        name: what is locked.
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
        self._line = f"{ROOT}/{quote(name, safe='').replace('.', '%2E')}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`."""
        wait_timeout(blocking, timeout)
        recipe = self._client.Lock(self._line)
        started = time.monotonic()
        try:
            if not recipe.acquire(blocking=blocking, timeout=timeout):
                return None
        except NotInTime:
            return None
        except KazooException as error:
            raise LockUnavailable(f"ZooKeeper gave no answer for lock {self.name!r}. Try again.") from error
        return RecipeLease(self, recipe.prefix, started=started, ttl=math.inf, clock=time.monotonic, recipe=recipe)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return True

    def _release(self, lease: Lease) -> bool:
        try:
            return bool(cast(RecipeLease, lease).recipe.release())
        except KazooException as error:
            raise LockUnavailable(f"ZooKeeper did not confirm the release of lock {self.name!r}.") from error


class RecipeLease(Lease):
    """A lease that knows the recipe's object, which holds the lock."""

    __slots__ = ("recipe",)

    def __init__(self, *args: Any, recipe: Recipe, **options: Any) -> None:
        super().__init__(*args, **options)
        self.recipe = recipe
