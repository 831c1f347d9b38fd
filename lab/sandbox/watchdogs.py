"""The watchdogs of a schedule, one per actor. A watchdog renews leases only at moments that the schedule chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.explorer.actor import current_actor
from lab.ladder.locks import rung
from lab.sandbox.stand_ins import StandIns
from locking.etcd import lock as etcd
from locking.postgres import insert, session_lock
from locking.redis import lock, redlock
from locking.renewal import Watchdog, watchdog
from locking.zookeeper import lock as zookeeper

if TYPE_CHECKING:
    from locking.lease import Lease
    from locking.renewal import Renewer

USERS: tuple[Any, ...] = (lock, redlock, zookeeper, etcd, session_lock, insert)
"""The modules whose locks use the watchdog of the process."""


class SteppedWatchdog(Watchdog):
    """A watchdog without a thread. It renews only when `tick` is called."""

    def _wake_by(self, moment: float) -> None:
        pass

    @property
    def renews(self) -> bool:
        """Whether the watchdog watches a lease that still has to be renewed."""
        leases = [entry.lease() for entry in list(self._watched.values()) if entry.renewer is not None]
        return any(lease is not None and lease.remaining() > 0 for lease in leases)

    def close(self) -> None:
        """Forget every lease and close the connections."""
        self._watched.clear()
        self._close_renewers(keep=set())


class _OfTheActor:
    """Passes each call on to the watchdog of the calling actor. Outside of actors, it uses the process's watchdog."""

    def watch(self, lease: Lease, renewer: Renewer | None) -> None:
        _watchdog().watch(lease, renewer)

    def forget(self, lease: Lease) -> None:
        _watchdog().forget(lease)


def _watchdog() -> Watchdog:
    actor = current_actor()
    return watchdog if actor is None else actor.watchdog


IN_THE_MODULES = StandIns(*((module, "watchdog", _OfTheActor()) for module in USERS))

IN_THE_RUNGS = StandIns((rung, "watchdog", _OfTheActor()))
"""Replaces the watchdog in the module of the lab's own locks, so that they use the watchdog of the calling actor."""
