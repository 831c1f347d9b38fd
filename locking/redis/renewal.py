"""RedisRenewer: extends the leases of all `RedisLock`s on one server or cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import redis
from redis.exceptions import MovedError

from locking.lease import Lease
from locking.redis.connection import NoNode, RenewalConnection, ScriptCall, pool_of
from locking.redis.lease import RedisLease

if TYPE_CHECKING:
    from redis import ConnectionPool
    from redis.cluster import RedisCluster

    from locking.redis.connection import Client

logger = logging.getLogger(__name__)


class RedisRenewer:
    """Extends all leases of one client, over connections of its own. Implements `locking.renewal.Renewer`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connections: dict[ConnectionPool, RenewalConnection] = {}

    @property
    def _servers(self) -> object:
        """What two clients of the same servers share: the connection pool, or the cluster client itself."""
        return getattr(self._client, "connection_pool", self._client)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RedisRenewer) and other._servers is self._servers

    def __hash__(self) -> int:
        return hash((RedisRenewer, id(self._servers)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend the leases as described in `Renewer.renew`. The nodes of a cluster are asked one after the other."""
        until = time.monotonic() + seconds
        by_pool: dict[ConnectionPool, list[Lease]] = {}
        answers: dict[str, bool | None] = {}
        for lease in leases:
            try:
                pool = pool_of(self._client, _extension(lease).keys[0])
            except NoNode as error:
                logger.warning("A lease was not renewed (%s); the watchdog tries again.", error)
                answers[lease.token] = None
            else:
                by_pool.setdefault(pool, []).append(lease)
        for pool, on_server in by_pool.items():
            for lease, answer in zip(on_server, self._renew(pool, on_server, until - time.monotonic()), strict=True):
                answers[lease.token] = answer
        return [answers[lease.token] for lease in leases]

    def close(self) -> None:
        """Close the connections. The renewer may be used again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _renew(self, pool: ConnectionPool, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        connection = self._connections.setdefault(pool, RenewalConnection(pool))
        try:
            answers = connection.run([_extension(lease) for lease in leases], seconds)
        except redis.RedisError as error:
            logger.warning("%d leases were not renewed (%s); the watchdog tries again.", len(leases), error)
            return [None] * len(leases)
        for answer in answers:
            if isinstance(answer, MovedError):
                cast("RedisCluster", self._client).nodes_manager.move_slot(answer)
            if isinstance(answer, Exception):
                logger.warning("A lease was not renewed (%s); the watchdog tries again.", answer)
        return [None if isinstance(answer, Exception) else bool(answer) for answer in answers]


def _extension(lease: Lease) -> ScriptCall:
    return cast(RedisLease, lease).extend_call(lease.ttl)
