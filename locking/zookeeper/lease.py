"""ZooKeeperLease: a lease that also ends with the session of its client."""

from __future__ import annotations

import weakref
from typing import Any

from locking.lease import Lease
from locking.zookeeper.session import ZooKeeperSession

ROOT = "/locks"
"""Path of the parent node of all queues."""


class ZooKeeperLease(Lease):
    """Lease of a `ZooKeeperLock`.

    Args:
        session: session of the client.
        number: `session.number` at the time of the grant. When `session.number` changes, the session has ended, so
            the lease has ended, too.
        path: path of the node in the queue that holds the lock.

    Attributes:
        path: path of the node.
        finalizer: removes the node when the lease is collected.
    """

    __slots__ = ("_number", "_session", "finalizer", "path")

    finalizer: weakref.finalize[..., Lease]

    def __init__(self, *args: Any, session: ZooKeeperSession, number: int, path: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._session = session
        self._number = number
        self.path = path

    def _ended(self) -> bool:
        return self._session.number != self._number or super()._ended()
