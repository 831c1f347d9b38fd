"""EtcdRenewer: extends the etcd leases of all `EtcdLock`s of one client."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from locking.errors import LockUnavailable
from locking.etcd.gateway import EtcdGateway
from locking.lease import Lease

if TYPE_CHECKING:
    from etcd3gw import Etcd3Client

logger = logging.getLogger(__name__)


class EtcdRenewer:
    """Extends the leases of all `EtcdLock`s of one client. Implements `locking.renewal.Renewer`."""

    def __init__(self, client: Etcd3Client) -> None:
        self._client = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EtcdRenewer) and other._client is self._client

    def __hash__(self) -> int:
        return hash((EtcdRenewer, id(self._client)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """Extend each lease by its TTL, in one round trip. See `locking.renewal.Renewer.renew`."""
        try:
            # Connecting may take half of the time limit, and the answers may take the other half.
            return EtcdGateway(self._client, leases[0].name).keep_alive([lease.token for lease in leases], seconds / 2)
        except LockUnavailable as error:
            logger.warning("%d leases were not renewed (%r); the watchdog tries again.", len(leases), str(error))
            return [None] * len(leases)

    def close(self) -> None:
        """Do nothing: the connections belong to the HTTP session, which the locks share."""
