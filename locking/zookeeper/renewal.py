"""ZooKeeperRenewer: confirms that the nodes of a client's leases still exist."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from kazoo.exceptions import KazooException, SessionExpiredError

from locking.lease import Lease
from locking.zookeeper.lease import ROOT, ZooKeeperLease

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult

logger = logging.getLogger(__name__)


class ZooKeeperRenewer:
    """Checks that the nodes of all leases of one client exist. Implements `locking.renewal.Renewer`.

    kazoo keeps the session alive by itself. Each confirmation that the node of a lease exists extends that lease.
    """

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZooKeeperRenewer) and other._client is self._client

    def __hash__(self) -> int:
        return hash((ZooKeeperRenewer, id(self._client)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease by its TTL, in one round trip. See `locking.renewal.Renewer.renew`.

        The server first catches up with the leader. Otherwise it might still confirm nodes of a session that has ended.
        """
        deadline = time.monotonic() + seconds
        caught_up = self._client.sync_async(ROOT)
        nodes = [self._client.exists_async(cast(ZooKeeperLease, lease).path) for lease in leases]
        session_alive = self._found(caught_up, deadline)
        return [session_alive and self._found(node, deadline) for node in nodes]

    def close(self) -> None:
        """Do nothing: the client belongs to the application."""

    def _found(self, result: IAsyncResult, deadline: float) -> bool | None:
        try:
            return result.get(timeout=max(0.0, deadline - time.monotonic())) is not None
        except SessionExpiredError:
            return False
        except (KazooException, self._client.handler.timeout_exception) as error:
            logger.warning("A lease was not renewed (%s); the watchdog tries again.", type(error).__name__)
            return None
