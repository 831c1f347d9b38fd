"""RedisLease: the lease of a `RedisLock`, with the call that extends it."""

from __future__ import annotations

from typing import Any

from locking.lease import Lease
from locking.redis.connection import ScriptCall, milliseconds


class RedisLease(Lease):
    """Lease of a `RedisLock`, with everything that an extension sends to the server.

    Args:
        keys: the keys of the lock, of its fence, and of its waiters.
        holder: label of the holder, for display.
        waited_as: the token under which the holder waited, if the lock was handed to it; otherwise empty.
        replicas: number of replicas that must have an extension before it counts.
    """

    __slots__ = ("_keys", "_replicas", "holder", "waited_as")

    def __init__(
        self, *args: Any, keys: tuple[str, str, str], holder: str, waited_as: str, replicas: int, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._keys = keys
        self._replicas = replicas
        self.holder = holder
        self.waited_as = waited_as

    def extend_call(self, ttl: float, *, shorten: bool = False) -> ScriptCall:
        """Return the call that keeps the lock for `ttl` seconds from now.

        Args:
            ttl: seconds.
            shorten: whether to set the TTL even if more time is left.
        """
        note = f"{self.fence} {self.holder}"
        args = (self.token, self.waited_as, milliseconds(ttl), note, int(shorten))
        return ScriptCall("extend", self._keys, args, self._replicas)
