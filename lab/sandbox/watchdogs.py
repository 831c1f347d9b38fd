"""The watchdogs of a schedule: each actor has his own, and it renews when the schedule says so and at no other time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.explorer.actor import current_actor
from lab.sandbox.stand_ins import StandIns
from locking import etcd, zookeeper
from locking.postgres import advisory, tables
from locking.redis import lock, redlock
from locking.renewal import Watchdog, watchdog

if TYPE_CHECKING:
    from locking.lease import Lease
    from locking.renewal import Renewer

USERS: tuple[Any, ...] = (lock, redlock, zookeeper, etcd, advisory, tables)
"""The modules whose leases are watched."""


class SteppedWatchdog(Watchdog):
    """A watchdog without a thread: somebody calls `tick`."""

    def _wake_by(self, moment: float) -> None:
        pass

    @property
    def renews(self) -> bool:
        """Whether it has a lease to renew."""
        leases = [entry.lease() for entry in list(self._watched.values()) if entry.renewer is not None]
        return any(lease is not None and lease.remaining() > 0 for lease in leases)

    def close(self) -> None:
        """Watch nothing any more, and let go of connections."""
        self._watched.clear()
        self._close_renewers(keep=set())


class _TheActors:
    """The watchdog of whoever asks; the one of the process for who is no actor."""

    def watch(self, lease: Lease, renewer: Renewer | None) -> None:
        _mine().watch(lease, renewer)

    def forget(self, lease: Lease) -> None:
        _mine().forget(lease)


def _mine() -> Watchdog:
    actor = current_actor()
    return watchdog if actor is None else actor.watchdog


IN_THE_MODULES = StandIns(*((module, "watchdog", _TheActors()) for module in USERS))
